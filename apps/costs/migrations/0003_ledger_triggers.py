"""The database itself keeps the books: balances follow postings, postings are never changed or removed."""

from django.db import migrations

# SQLite has no session settings: one row says whether a posting is just being booked (booking) and
# whether postings are protected (frozen; only a test that empties its database lifts it).
SQLITE = [
    "CREATE TABLE costs_guard (booking INTEGER NOT NULL, frozen INTEGER NOT NULL)",
    "INSERT INTO costs_guard VALUES (0, 1)",
    """
    CREATE TRIGGER costs_posting_units BEFORE INSERT ON costs_posting
    WHEN (SELECT COUNT(*) FROM costs_account
          WHERE id IN (NEW.source_id, NEW.target_id) AND unit = NEW.unit) <> 2
      OR (SELECT COUNT(DISTINCT team_id) FROM costs_account WHERE id IN (NEW.source_id, NEW.target_id)) <> 1
    BEGIN
        SELECT RAISE(ABORT, 'a posting joins two accounts of one team in one unit');
    END
    """,
    """
    CREATE TRIGGER costs_posting_moves AFTER INSERT ON costs_posting BEGIN
        UPDATE costs_guard SET booking = 1;
        UPDATE costs_account SET balance = balance - NEW.amount WHERE id = NEW.source_id;
        UPDATE costs_account SET balance = balance + NEW.amount WHERE id = NEW.target_id;
        UPDATE costs_guard SET booking = 0;
    END
    """,
    """
    CREATE TRIGGER costs_posting_no_update BEFORE UPDATE ON costs_posting BEGIN
        SELECT RAISE(ABORT, 'postings are never changed or deleted');
    END
    """,
    """
    CREATE TRIGGER costs_posting_no_delete BEFORE DELETE ON costs_posting
    WHEN (SELECT frozen FROM costs_guard) = 1
    BEGIN
        SELECT RAISE(ABORT, 'postings are never changed or deleted');
    END
    """,
    """
    CREATE TRIGGER costs_balance_follows BEFORE UPDATE OF balance ON costs_account
    WHEN NEW.balance <> OLD.balance AND (SELECT booking FROM costs_guard) = 0
    BEGIN
        SELECT RAISE(ABORT, 'a balance changes only by postings');
    END
    """,
    """
    CREATE TRIGGER costs_account_opens_empty BEFORE INSERT ON costs_account
    WHEN NEW.balance <> 0
    BEGIN
        SELECT RAISE(ABORT, 'an account opens empty');
    END
    """,
]

POSTGRES = [
    """
    CREATE FUNCTION costs_posting_moves() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF (SELECT COUNT(*) FROM costs_account
            WHERE id IN (NEW.source_id, NEW.target_id) AND unit = NEW.unit) <> 2
           OR (SELECT COUNT(DISTINCT team_id) FROM costs_account WHERE id IN (NEW.source_id, NEW.target_id)) <> 1 THEN
            RAISE EXCEPTION 'a posting joins two accounts of one team in one unit';
        END IF;
        PERFORM set_config('quarterdeck.posting', 'on', true);
        UPDATE costs_account SET balance = balance - NEW.amount WHERE id = NEW.source_id;
        UPDATE costs_account SET balance = balance + NEW.amount WHERE id = NEW.target_id;
        PERFORM set_config('quarterdeck.posting', 'off', true);
        RETURN NEW;
    END $$
    """,
    """
    CREATE TRIGGER costs_posting_moves AFTER INSERT ON costs_posting
    FOR EACH ROW EXECUTE FUNCTION costs_posting_moves()
    """,
    """
    CREATE FUNCTION costs_posting_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'postings are never changed or deleted'; END $$
    """,
    """
    CREATE TRIGGER costs_posting_frozen BEFORE UPDATE OR DELETE ON costs_posting
    FOR EACH ROW EXECUTE FUNCTION costs_posting_frozen()
    """,
    """
    CREATE FUNCTION costs_balance_follows() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.balance <> OLD.balance AND COALESCE(current_setting('quarterdeck.posting', true), 'off') <> 'on' THEN
            RAISE EXCEPTION 'a balance changes only by postings';
        END IF;
        RETURN NEW;
    END $$
    """,
    """
    CREATE TRIGGER costs_balance_follows BEFORE UPDATE ON costs_account
    FOR EACH ROW EXECUTE FUNCTION costs_balance_follows()
    """,
    """
    CREATE FUNCTION costs_account_opens_empty() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.balance <> 0 THEN RAISE EXCEPTION 'an account opens empty'; END IF;
        RETURN NEW;
    END $$
    """,
    """
    CREATE TRIGGER costs_account_opens_empty BEFORE INSERT ON costs_account
    FOR EACH ROW EXECUTE FUNCTION costs_account_opens_empty()
    """,
]


def forwards(apps, schema_editor):
    statements = {"sqlite": SQLITE, "postgresql": POSTGRES}[schema_editor.connection.vendor]
    for statement in statements:
        schema_editor.execute(statement)


class Migration(migrations.Migration):
    dependencies = [("costs", "0002_initial")]
    operations = [migrations.RunPython(forwards, migrations.RunPython.noop)]
