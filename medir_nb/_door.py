"""The door of a room: what its modules name in `__all__`, loaded when it is first used."""

import ast
import re
from pathlib import Path

import lazy_loader


def names_of(folder: Path, modules: list[str]) -> dict[str, list[str]]:
    "Module → the names that it lists."
    names = {}
    for module in modules:
        source = (folder / f'{module}.py').read_text(encoding='utf-8')
        listed = re.search(r'^__all__ = (\[.*?\])', source, re.DOTALL | re.MULTILINE)
        names[module] = ast.literal_eval(listed[1]) if listed else []
    return names


def open_door(package: str, modules: list[str]) -> tuple:
    "`__getattr__, __dir__, __all__` of a room; a module is reached by its name, too."
    names = names_of(Path(__file__).parent / package.rpartition('.')[2], modules)
    return lazy_loader.attach(package, names, names)
