"""The panels about sessions between agents: posts, unconfirmed messages, and violated time limits."""

from __future__ import annotations

from typing import Any, Final

from dashboards.panels import COUNT, GREEN, RED, SECONDS, YELLOW, Query, bars, lines, of_series, steps
from dashboards.queries import by_service, quantile, series
from dashboards.shared import EXACT, quantiles

TYPE: Final = "assembly_session_type"
OUTCOME: Final = "assembly_post_outcome"
KIND: Final = "assembly_violation_kind"
NO_SESSIONS: Final = "No agents share sessions, or no post was made in this time range"


def sessions() -> tuple[Any, ...]:
    """Return the panels about sessions, whose metrics have no agent label."""
    return (
        bars(
            "Violated expectations",
            "A participant did not join, reply or speak within the time that a session allows, by type of session "
            f"and kind of expectation. Worry from the first one: a session is waiting. {EXACT}",
            [
                Query(
                    by_service(series("assembly_session_violations_total"), TYPE, KIND),
                    f"{{{{service}}}}: {{{{{KIND}}}}} of {{{{{TYPE}}}}}",
                )
            ],
            series_links=[
                of_series("Traces with a violation", '{"assembly.envelope.type":"ag2.expectation.violated"}'),
            ],
            empty="No session reported a violation in this time range",
        ),
        bars(
            "Posts",
            "Posts of agents and hubs to sessions, by outcome. Worry if `refused` rises with `accepted` (full "
            "inboxes, agents that post out of turn, a log that fails), and about any `unsure`: answers of the log "
            f"are lost. {EXACT}",
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
            "Time until a post is synced to the log or refused, including the wait for room in an inbox. Worry "
            "above a second: the disk is slow, or many hubs post to one session. Values are read from buckets whose "
            "boundaries are 2 to 3 times apart, and are as coarse. The marks are single posts; a click on one opens "
            "its trace.",
            quantiles("assembly_session_post_duration_seconds", ""),
            unit=SECONDS,
            logarithmic=True,
            thresholds=steps((None, GREEN), (1, YELLOW)),
            empty=NO_SESSIONS,
        ),
        lines(
            "Waiting in inboxes (p95)",
            "Envelopes that a participant had not confirmed when its inbox was read, by type of session. Worry if "
            "it rises: an agent is slower than its senders. At the hub's limit (1,000) posts are refused.",
            [Query(quantile(0.95, "assembly_session_inbox_waiting", by=(TYPE,)), f"{{{{{TYPE}}}}}", exemplars=True)],
            unit=COUNT,
            decimals=0,
            thresholds=steps((None, GREEN), (100, YELLOW), (1_000, RED)),
            empty=NO_SESSIONS,
        ),
    )
