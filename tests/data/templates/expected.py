"""Fills `expected` (or `error`) in cases.json with what Jinja2 renders.

Run it after changing a template or a case: `python3 expected.py`. The environment is the one that
chat templates are written for: blocks trimmed, loop controls, tojson without HTML escapes.
"""

import datetime
import json
import pathlib
import re

import jinja2
import jinja2.ext

here = pathlib.Path(__file__).parent


class Refused(Exception):
    pass


def raise_exception(message):
    raise Refused(message)


def render(source, case):
    env = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = lambda value, ensure_ascii=False, **options: json.dumps(
        value, ensure_ascii=ensure_ascii, **options
    )
    now = datetime.datetime.fromtimestamp(case.get("now", 0), datetime.timezone.utc)
    # The training library's block marker has no effect on the text.
    source = re.sub(r"(\{%[-+]?\s*)generation(\s*[-+]?%\})", r"\1if true\2", source)
    source = re.sub(r"(\{%[-+]?\s*)endgeneration(\s*[-+]?%\})", r"\1endif\2", source)
    return env.from_string(source).render(
        messages=case["messages"],
        tools=case.get("tools"),
        add_generation_prompt=case.get("add_generation_prompt", False),
        bos_token="<s>",
        eos_token="</s>",
        raise_exception=raise_exception,
        strftime_now=now.strftime,
        **case.get("kwargs", {}),
    )


def main():
    path = here / "cases.json"
    cases = json.loads(path.read_text())
    for case in cases:
        case.pop("expected", None)
        case.pop("error", None)
        source = (here / f"{case['template']}.jinja").read_text()
        try:
            case["expected"] = render(source, case)
        except Refused as refused:
            case["error"] = str(refused)
    path.write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
