"""A check of our own: no request that fits the description is refused, but for the reasons listed here."""

import re

import schemathesis
from schemathesis.core.failures import Failure

# Refusals of the request itself. 401 and 403 are about the caller, 404 and 409 about what is there, 429 about the amount.
REFUSALS = {400, 405, 406, 411, 413, 414, 415, 422, 431}

# What JSON Schema cannot express: how two values relate, or what a text means. Field, and a part of the detail.
TOLD_REASONS = [
    # An expiry is later than the due time, and a token's is in the future.
    (r"expires_(at|after_ms)", r"before it is due|is in the past|has passed|reaches past"),
    # The calendar of a schedule and its time zone.
    (r"cron|time_zone", r""),
    (r"retry\.(max_ms|base_ms)", r""),
    # A bulk cursor is a sealed position of an earlier answer.
    (r"cursor", r"of the previous answer"),
    # The total of names and values, and bytes where the description counts characters.
    (r"headers", r"bytes"),
    (r"content_type", r"bytes"),
    # Dependencies need the task's partition, or a queue on one shard; a task is not its own dependency.
    (r"depends_on(\[.*\])?", r""),
    # The queue decides which payloads fit its format.
    (r"payload", r"celery"),
    # A shift or a delay that ends after the year 9999.
    (r"(shift|delay)_ms", r"reaches past"),
    # A set of shards: ranges with their first shard not above the last, and shards that the cluster has.
    (r"(shards)?", r"is not a range of shards|the cluster has no shards"),
    # Databases are known to the configuration.
    (r"to", r"there is no database"),
]


class RefusedWithoutReason(Failure):
    __slots__ = ()

    def __init__(self, *, operation, message):
        super().__init__(operation=operation, title="Schema-valid request refused", message=message)


def is_told(problem):
    field, detail = problem.get("field") or "", problem.get("detail") or ""
    return any(re.fullmatch(name, field) and re.search(part, detail) for name, part in TOLD_REASONS)


@schemathesis.check
def schema_valid_requests_are_taken(ctx, response, case):
    meta = getattr(case, "meta", None)
    if meta is None or not meta.generation.mode.is_positive or response.status_code not in REFUSALS:
        return None
    # Unexpected methods and the like are tried in the coverage phase as positive cases.
    if case.method.upper() != case.operation.method.upper():
        return None
    try:
        problem = response.json()
    except ValueError:
        problem = {}
    if not is_told(problem):
        raise RefusedWithoutReason(operation=case.operation.label, message=f"{response.status_code}: {problem}")
    return None
