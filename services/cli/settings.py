"""`draftproof settings`: every setting, its value now and what it is for."""

from __future__ import annotations

from rich.table import Table

from services.settings import PREFIX, AllSettings, load


def settings() -> None:
    """List every DRAFTPROOF_* variable with its present value."""
    from services.cli.console import out

    values = load(AllSettings)
    table = Table("variable", "value", "meaning")
    for name, field in AllSettings.model_fields.items():
        table.add_row(PREFIX + name.upper(), str(getattr(values, name)), field.description or "")
    out.print(table)
