#!/usr/bin/env python3
"""Holds alerts, runbooks, tests and dashboards against one another and against the source. Silent when all is well.

promtool reads rules and expressions; what it cannot know is here: whether a metric, its labels and the values asked for exist in the
nodes' source, whether each alert has a page and two tests, whether the table of thresholds tells the truth.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts/duetime"
RULES = CHART / "files/rules.yaml"
RUNBOOKS = ROOT / "docs/runbooks"
LOOPS = ROOT / "scheduler-node/src/supervise/loop_kind.rs"
SECTIONS = ["## What users notice", "## Look", "## Do", "## Do not"]

# What Prometheus adds, and what the process collector of the client library tells.
TARGET_LABELS = {"job", "instance", "namespace"}
PROCESS = {"cpu_seconds_total", "open_fds", "max_fds", "resident_memory_bytes", "virtual_memory_bytes",
           "start_time_seconds", "threads"}
NOT_OURS = {"up": set(), "ALERTS": {"alertname", "alertstate"}} | {f"process_{name}": set() for name in PROCESS}
# Series that an operator may record (see the head of the rules).
OPERATORS = {"duetime:lateness_exempt": {"queue"}}

NAME = re.compile(r"(?<![\w:])(duetime[:_][\w:]+|process_\w+|up|ALERTS)(?![\w:(])(\{[^{}]*\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')
GROUPING = re.compile(r"\b(?:by|on|ignoring|without|group_left)\s*\(([^)]*)\)")

faults = []


def expect(true, fault):
    if not true:
        faults.append(fault)


def sources():
    folders = [ROOT / "scheduler-node/src", ROOT / "common/src"]
    files = [path for folder in folders for path in folder.rglob("*.rs")]
    return "\n".join(path.read_text() for path in files if "tests" not in path.parts and path.name != "tests.rs")


def registered(source):
    """Every metric with its labels, as the source registers it: name, help, then a list of labels before the next one's name."""
    known = {}
    starts = [found for found in re.finditer(r'"(duetime_\w+)",?\s+"', source)]
    for found, after in zip(starts, [*starts[1:], None]):
        name, before = found[1], source[max(0, found.start() - 60):found.start()]
        rest = source[found.start():min(found.start() + 500, after.start() if after else len(source))]
        lists = re.findall(r'&\[((?:\s*"\w+"\s*,?)+)\]', rest)
        labels = set(re.findall(r'"(\w+)"', lists[0])) if lists else set()
        labels |= set(re.findall(r'\.const_label\("(\w+)"', rest))
        # The only family of histograms in `metrics/families.rs` has a fixed label.
        labels |= {"queue"} if "= histograms(" in before else set()
        if re.search(r"(HistogramOpts::new|= histograms?)\(\s*$", before):
            known |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
        else:
            known[name] = labels
    return known


def check_expression(where, expr, known, source):
    all_labels = TARGET_LABELS.union(*known.values())
    for name, matchers in NAME.findall(expr):
        if name not in known:
            faults.append(f"{where}: no such metric: {name}")
            continue
        for label, operator, value in MATCHER.findall(matchers):
            expect(label in known[name] | TARGET_LABELS, f"{where}: {name} has no label {label}")
            if label in TARGET_LABELS or label.startswith("alert") or label == "le" or "$" in value:
                continue
            for one in expand(value) if operator in ("=~", "!~") else [value]:
                there = f'"{one}"' in source or f"Method::{one}" in source or ".*" in one
                expect(there, f"{where}: nothing sets {label}=\"{one}\" of {name}")
    for labels in GROUPING.findall(expr):
        for label in re.findall(r"\w+", labels):
            expect(label in all_labels, f"{where}: no metric has the label {label}")


def expand(pattern):
    """The alternatives of `a|b` and `a(/b)?`, which is all that is used."""
    optional = re.fullmatch(r"(.*)\((.*)\)\?", pattern)
    return [optional[1], optional[1] + optional[2]] if optional else pattern.split("|")


def table():
    rows = re.findall(r"^# (Duetime\w+) +([\d.]+) ", RULES.read_text(), re.M)
    return dict(rows)


def check_rules(known, source):
    alerts = {}
    recorded = {}
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    for rule in rules:
        if "record" in rule:
            recorded[rule["record"]] = TARGET_LABELS
    known = known | recorded | OPERATORS
    for rule in rules:
        check_expression(rule.get("alert") or rule["record"], rule["expr"], known, source)
        if "alert" in rule:
            name = rule["alert"]
            expect(name not in alerts, f"{name}: is there twice")
            alerts[name] = rule
            notes = rule["annotations"]
            expect(rule["labels"].get("severity") in ("critical", "warning", "info"), f"{name}: no severity")
            expect(notes.get("summary") and notes.get("description"), f"{name}: needs a summary and a description")
            expect(notes.get("runbook_url") == f"docs/runbooks/{name}.md", f"{name}: runbook_url names another page")
    thresholds = table()
    for name, value in thresholds.items():
        if name in alerts:
            last = re.search(r"([\d.]+)$", alerts[name]["expr"])
            expect(last and last[1] == value, f"{name}: the table says {value}, the expression ends with {last and last[1]}")
        else:
            faults.append(f"the table of thresholds names {name}, which is no alert")
    return alerts


def check_runbooks(alerts):
    pages = {path.stem: path.read_text() for path in RUNBOOKS.glob("Duetime*.md")}
    index = (RUNBOOKS / "README.md").read_text()
    for name in sorted(alerts.keys() | pages.keys()):
        expect(name in pages, f"{name}: has no page in docs/runbooks")
        expect(name in alerts, f"docs/runbooks/{name}.md: there is no such alert")
        expect(f"[{name}]({name}.md)" in index, f"{name}: is missing in docs/runbooks/README.md")
    for name, text in pages.items():
        expect(text.startswith(f"# {name}\n"), f"docs/runbooks/{name}.md: the title is not the alert's name")
        found = [line for line in text.splitlines() if line.startswith("## ")]
        expect(found == SECTIONS, f"docs/runbooks/{name}.md: has the sections {found}")


def check_loops():
    """The runbook of stalled loops names every loop of the nodes, and no other."""
    loops = set(re.findall(r'^ +\w+ = "(\w+)",$', LOOPS.read_text(), re.M))
    rows = re.findall(r"^\| (`[^|]*`) \|", (RUNBOOKS / "DuetimeLoopStalled.md").read_text(), re.M)
    named = set(re.findall(r"`(\w+)`", " ".join(rows)))
    expect(loops, f"{LOOPS}: names no loop")
    for name in sorted(loops ^ named):
        what = "is missing" if name in loops else "is no loop"
        faults.append(f"docs/runbooks/DuetimeLoopStalled.md: {name} {what}")


def check_runbook_queries(known, source):
    for path in sorted(RUNBOOKS.glob("*.md")):
        for block in re.findall(r"```promql\n(.*?)```", path.read_text(), re.S):
            for line in block.strip().splitlines():
                yield f"docs/runbooks/{path.name}", line
                check_expression(f"docs/runbooks/{path.name}", line, known | OPERATORS, source)


def check_tests(alerts):
    tests = yaml.safe_load((CHART / "tests/rules_test.yaml").read_text())["tests"]
    for name, rule in alerts.items():
        own = [test for test in tests if test["name"].startswith(f"{name}: ")]
        fires = [test for test in own if ": fires" in test["name"]]
        expect(fires, f"{name}: no test in which it fires")
        expect([test for test in own if ": silent" in test["name"]], f"{name}: no test in which it is silent")
        for test in own:
            checks = test.get("promql_expr_test", [])
            samples = [sample["labels"] for check in checks for sample in check["exp_samples"]]
            if not checks:
                continue
            mine = [labels for labels in samples if f'alertname="{name}"' in labels]
            expect(bool(mine) == (test in fires), f"{test['name']}: expects something else than its name says")
            for labels in mine:
                # A label that `with` reads may be missing.
                for label in re.findall(r"(?<!with )\$labels\.(\w+)", rule["annotations"]["description"]):
                    expect(f'{label}="' in labels, f"{name}: the description tells {label}, which the alert does not have")


def check_dashboards(known, source):
    uids = set()
    for path in sorted((CHART / "files/dashboards").glob("*.json")):
        where = path.name
        board = json.loads(path.read_text())
        expect(board["uid"] == f"duetime-{path.stem}" and board["uid"] not in uids, f"{where}: the uid is not its own")
        uids.add(board["uid"])
        expect(board.get("id") is None, f"{where}: an id belongs to one Grafana")
        expect(board["schemaVersion"] >= 39, f"{where}: old schema")
        variables = {variable["name"]: variable for variable in board["templating"]["list"]}
        expect({"datasource", "namespace", "job", "instance"} <= variables.keys(), f"{where}: variables are missing")
        for variable in variables.values():
            for query in re.findall(r"label_values\((.*), (\w+)\)$", variable.get("definition", "")):
                check_scope(f"{where}: ${variable['name']}", query[0], {"namespace": 0, "job": 1}.get(variable["name"], 2))
                yield f"{where}: ${variable['name']}", query[0]
                check_expression(f"{where}: ${variable['name']}", query[0], known, source)
                metric = re.match(r"\w+", query[0])[0]
                expect(query[1] in known.get(metric, set()) | TARGET_LABELS, f"{where}: {metric} has no label {query[1]}")
        ids = [panel["id"] for panel in board["panels"]]
        expect(len(ids) == len(set(ids)), f"{where}: two panels have one id")
        check_places(where, [panel["gridPos"] for panel in board["panels"]])
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                name = f"{where}: {panel['title']}"
                expect(target["datasource"]["uid"] == "${datasource}", f"{name}: a fixed data source")
                for used in re.findall(r"\$(\w+)", target["expr"] + target["legendFormat"]):
                    expect(used in variables or used.startswith("__"), f"{name}: no variable {used}")
                check_expression(name, target["expr"], known, source)
                check_scope(name, target["expr"])
                yield name, target["expr"]


def check_scope(where, expr, depth=2):
    """A cluster is a job in a namespace: every selector begins with the chosen ones, the first `depth` of them."""
    chosen = ", ".join(['namespace=~"$namespace"', 'job=~"$job"'][:depth])
    selectors = re.findall(r"\{[^{}]*\}", expr)
    expect(selectors or not chosen, f"{where}: does not select {chosen}")
    for selector in selectors:
        expect(selector.startswith("{" + chosen), f"{where}: {selector} does not begin with {chosen}")
    for labels in GROUPING.findall(expr):
        words = re.findall(r"\w+", labels)
        expect("job" not in words or "namespace" in words, f"{where}: ({labels}) takes jobs of all namespaces for one")


def check_places(where, places):
    taken = set()
    for place in places:
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        expect(not cells & taken and max(x for x, _ in cells) < 24, f"{where}: panels overlap at {place}")
        taken |= cells


def parse(expressions):
    """promtool's opinion of every expression, its variables filled in: all in one go, and one by one when it has something to say."""
    filled = [(where, re.sub(r"\$\w+", "5m", re.sub(r'"\$\w+"', '".*"', expr))) for where, expr in expressions]
    if said(filled):
        for where, expr in filled:
            expect(not said([(where, expr)]), f"{where}: promtool cannot read {expr}")


def said(expressions):
    rules = [{"record": f"parsed:{number}", "expr": expr} for number, (_, expr) in enumerate(expressions)]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"groups": [{"name": "parsed", "rules": rules}]}, file)
        file.flush()
        run = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True, check=False)
    return run.stderr if run.returncode else ""


def main():
    source = sources()
    known = registered(source)
    named = {name for name in re.findall(r'"(duetime_\w+)"', source) if name in known or f"{name}_count" in known}
    expect(len(named) > 35, f"the source is read: {sorted(named)}")
    reference = (ROOT / "docs/reference.md").read_text()
    for name in sorted(named):
        expect(re.search(rf"`{name}[`{{]", reference), f"docs/reference.md: {name} is missing")
    known |= NOT_OURS
    alerts = check_rules(known, source)
    check_runbooks(alerts)
    check_loops()
    check_tests(alerts)
    expressions = list(check_dashboards(known, source)) + list(check_runbook_queries(known, source))
    parse(expressions)
    for fault in faults:
        print(fault, file=sys.stderr)
    if not faults:
        print(f"{len(alerts)} alerts, {len(expressions)} expressions of dashboards and runbooks, {len(named)} metrics")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
