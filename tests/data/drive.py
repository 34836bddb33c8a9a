"""``residlab fetch`` over data sets made by a test: ``drive.py REGISTRY.json ARGUMENTS``."""

import argparse
import json
import sys
from pathlib import Path

from residlab.data import command, sources
from residlab.errors import ResidlabError


def main(registry: str, *arguments: str) -> int:
    entries = json.loads(Path(registry).read_text(encoding="utf-8"))
    sources.DATA_SETS = {
        entry["name"]: sources.DataSet(**{**entry, "members": tuple(sources.Member(**m) for m in entry["members"])})
        for entry in entries
    }
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    try:
        return command.run(parser.parse_args(arguments))
    except ResidlabError as error:
        print(f"residlab: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
