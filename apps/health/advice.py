"""What this site does about an XID, word for word as the catalogue of codes ships it, marked for translation.

The rows are editable: an administrator's own words are shown as they were typed.
"""

from __future__ import annotations

from django.utils.translation import gettext_noop as _

#: Every ``suggested_action`` of ``data/xid_catalogue.csv``.
SHIPPED = frozenset(
    {
        _("IGNORE / RESET per decode; no decode -> watch"),
        _("LINK_DOWN drain+reset; >1/day -> replace; peer codes blame the peer"),
        _("as 119"),
        _("as 144"),
        _("as 48; 172 repeat -> replace"),
        _("drain after job + diag"),
        _("drain+reboot"),
        _("drain+reboot once; again within 7 d -> replace (EC2: prefer replace, no host power cycle)"),
        _("drain+reboot; repeat -> replace"),
        _("drain+replace"),
        _("drain+replace (nothing to reseat on EC2)"),
        _("drain+reset"),
        _("drain+reset (A100 without MIG: reboot); repeat in 7 d -> replace"),
        _("drain+reset (A100: reboot); then if ROW_REMAP_FAILURE=1 or repeat -> replace"),
        _("drain+reset unless we reset/rebooted it in the last 10 min"),
        _("drain+reset, else reboot; repeat -> diag; many nodes at once = driver bug, stop"),
        _("drain+reset, else reboot; repeat -> replace"),
        _("drain+reset, then reboot; repeat -> replace"),
        _("drain+reset; SRAM flag or repeat -> replace"),
        _("drain+reset; driver >= R570 follow 154"),
        _("drain+reset; repeat -> replace"),
        _("drain+reset; same link >=2 in 24 h -> replace"),
        _("enable ECC, reboot"),
        _("if 154 follows do that, else restart job"),
        _("ignore"),
        _("ignore (tests)"),
        _("ignore for the node; show on the job"),
        _("ignore; never counts alone"),
        _("note"),
        _("note (gpud: 123 = reboot)"),
        _("note + trend; >=3 in 7 d -> drain after job + diag"),
        _("note; AWS suite: ISOLATE only with STRICT_PSHC=1"),
        _("note; inventory flag"),
        _("note; old driver -> drain+reboot"),
        _("note; repeat -> drain+reboot"),
        _("parse text; the HIGHEST of 154 and the table wins; clears when 'None'"),
        _("reset if UVM in use, else note"),
        _("reset when idle"),
        _("reset when idle; >=3 in 30 d on one GPU -> replace; policy switch 'EC2-strict' = replace at once"),
        _("reset, reboot, then replace"),
        _("restart job"),
        _("restart job anywhere; reset this GPU when idle; >=2 in 7 d -> quarantine+diag"),
        _("restart job; blame job unless same GPU+GPC/TPC >=2 in 24 h over different jobs -> quarantine+diag"),
        _("restart job; repeat -> drain+reboot"),
        _("restart job; repeat same GPU -> drain+reboot"),
        _("restart job; same GPU >=2 in 24 h over different jobs -> quarantine+diag"),
    }
)
