"""`triptych vector`: collections of vectors from a shell."""

from __future__ import annotations

import click

from coordinator.commands.vector_collections import collections, create, drop
from coordinator.commands.vector_items import count, delete, get, search
from coordinator.commands.vector_upsert import upsert


@click.group(no_args_is_help=True)
def vector() -> None:
    """Collections of vectors with attributes: upserts and searches.

    \b
    triptych vector create notes --dimension 3 --text-field body
    triptych vector upsert notes.jsonl --collection notes
    triptych vector search --vector '[0.1, 0.9, 0.2]' --collection notes
    triptych vector search --text 'quick fox' --collection notes
    """


for command in (collections, create, drop, upsert, search, get, count, delete):
    vector.add_command(command)
