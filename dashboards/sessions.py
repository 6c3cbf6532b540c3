"""Sessions between agents: what is posted, how long it takes, what waits, and what was waited for in vain."""

from __future__ import annotations

from typing import Any, Final

from dashboards.panels import COUNT, GREEN, RED, SECONDS, YELLOW, Query, bars, lines, of_series, steps
from dashboards.queries import by_service, quantile, series
from dashboards.shared import EXACT, quantiles

TYPE: Final = "assembly_session_type"
OUTCOME: Final = "assembly_post_outcome"
KIND: Final = "assembly_violation_kind"
NO_SESSIONS: Final = "No agents share sessions, or nothing was posted in this time range"


def sessions() -> tuple[Any, ...]:
    """The panels; none of their metrics says the agent."""
    return (
        bars(
            "Expectations that were not met",
            "Somebody did not join, reply or speak within the time that a session expects, by kind of session and of "
            f"expectation. Worry from the first one on: somebody waits. {EXACT}",
            [
                Query(
                    by_service(series("assembly_session_violations_total"), TYPE, KIND),
                    f"{{{{service}}}}: {{{{{KIND}}}}} of {{{{{TYPE}}}}}",
                )
            ],
            series_links=[
                of_series("Traces that tell of it", '{"assembly.envelope.type":"ag2.expectation.violated"}'),
            ],
            empty="All that sessions expected was met in this time range, as far as is reported",
        ),
        bars(
            "Posts",
            "What agents and hubs posted to sessions, by outcome. Worry when `refused` rises beside `accepted` (full "
            "inboxes, agents that speak out of turn, a log that fails), and about any `unsure`: the log's answers are "
            f"lost. {EXACT}",
            [
                Query(
                    by_service(series("assembly_session_posts_total"), TYPE, OUTCOME),
                    f"{{{{service}}}}: {{{{{TYPE}}}}} {{{{{OUTCOME}}}}}",
                )
            ],
            series_links=[
                of_series("Traces with such a post", f'{{"assembly.post.outcome":"${{__field.labels.{OUTCOME}}}"}}'),
            ],
            empty=NO_SESSIONS,
        ),
        lines(
            "Duration of posts",
            "How long a post takes until it is synced to the log, or refused; waiting for room in an inbox is in it. "
            "Worry above a second: the disk is slow, or many hubs post to one session. Values are read off buckets "
            "whose boundaries are 2 to 3 times apart, and as coarse. The marks are single posts; a click on one opens "
            "its trace.",
            quantiles("assembly_session_post_duration_seconds", ""),
            unit=SECONDS,
            logarithmic=True,
            thresholds=steps((None, GREEN), (1, YELLOW)),
            empty=NO_SESSIONS,
        ),
        lines(
            "Waiting in inboxes (p95)",
            "What a participant had not confirmed when its inbox was looked at, by kind of session. Worry when it "
            "rises: an agent is slower than what is said to it, and at the hub's limit (1,000) posts are refused.",
            [Query(quantile(0.95, "assembly_session_inbox_waiting", by=(TYPE,)), f"{{{{{TYPE}}}}}", exemplars=True)],
            unit=COUNT,
            decimals=0,
            thresholds=steps((None, GREEN), (100, YELLOW), (1_000, RED)),
            empty=NO_SESSIONS,
        ),
    )
