"""The frame of every dashboard: variables, links, time range and grid."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from dashboards.panels import DATASOURCE, STEP
from dashboards.queries import PROCESSES, THE_AGENT

WIDTH: Final = 24
TURNS: Final = "assembly_duration_seconds_count"


@dataclass(frozen=True, slots=True)
class Section:
    """A row with a title, and under it panels of one size, as many per line as fit."""

    title: str
    panels: tuple[Any, ...]
    width: int = 8
    height: int = 8


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard; `name` is its file name and part of its uid, by which others link to it."""

    name: str
    title: str
    description: str
    sections: tuple[Section, ...]
    variables: tuple[Any, ...]
    links: tuple[Any, ...]
    annotations: tuple[Any, ...]

    def json(self) -> str:
        """The JSON that is committed and that Grafana reads."""
        builder = builders.Dashboard(self.title)
        builder.uid(f"otel-{self.name}").description(self.description).tags(
            ["otel-assembly", "agents", "opentelemetry"]
        )
        builder.readonly().time("now-6h", "now").refresh("1m").timezone("browser").annotations(list(self.annotations))
        builder.tooltip(models.DashboardCursorSync.CROSSHAIR).variables(list(self.variables)).links(list(self.links))
        number, top = 0, 0
        for section in self.sections:
            number += 1
            place = models.GridPos(x=0, y=top, w=WIDTH, h=1)
            builder.with_row(builders.Row(section.title).id(number).grid_pos(place))
            top += 1
            for index, panel in enumerate(section.panels):
                number += 1
                line, column = divmod(index * section.width, WIDTH)
                place = models.GridPos(x=column, y=top + line * section.height, w=section.width, h=section.height)
                builder.with_panel(panel.id(number).grid_pos(place))
            top += section.height * -(-len(section.panels) * section.width // WIDTH)
        written = json.loads(json.dumps(builder.build(), cls=JSONEncoder))
        for one in (*written["links"], *written["annotations"]["list"]):
            del one["placement"]  # next to the variables, not in a menu
        # Grafana assigns the id; an id in the file would overwrite the dashboard that has it.
        return json.dumps({"id": None, **written}, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def datasource() -> Any:
    """The variable that selects a Prometheus."""
    return builders.DatasourceVariable("datasource").label("Data source").type("prometheus")


def job() -> Any:
    """The variable that selects services, by the label of `service.namespace` and `service.name`."""
    found = f"label_values({TURNS}, job)"
    return _query("job", "Service", found).multi(True).include_all(True).all_value(".+").current(_everything())


def instance() -> Any:
    """The variable that selects processes; without `service.instance.id` the label is missing, so all is `.*`."""
    found = f'label_values({TURNS}{{job=~"$job"}}, instance)'
    return _query("instance", "Process", found).multi(True).include_all(True).all_value(".*").current(_everything())


def agents() -> Any:
    """The variable that selects agents; an agent can have no name."""
    found = f"label_values({TURNS}{{{PROCESSES}}}, gen_ai_agent_name)"
    return _query("agent", "Agent", found).multi(True).include_all(True).all_value(".*").current(_everything())


def one_agent() -> Any:
    """The variable that selects one agent."""
    found = f"label_values({TURNS}{{{PROCESSES}}}, gen_ai_agent_name)"
    return _query("agent", "Agent", found).multi(False).include_all(False)


def firing_alerts(agent: str) -> Any:
    """Annotations of firing alerts on every graph: those of the selection and of the servers.

    Args:
        agent: A pattern of agents; an alert on a whole service has no agent.
    """
    which = f'alertname=~"Assembly.+", alertstate="firing", job=~"$job|assembly-stack", gen_ai_agent_name=~"{agent}|"'
    marks = builders.AnnotationQuery().name("Firing alerts").datasource(DATASOURCE).enable(True).icon_color("red")
    marks.expr(f"ALERTS{{{which}}}").step(STEP).title_format("{{alertname}}")
    return marks.text_format("{{job}} {{gen_ai_agent_name}} {{assembly_policy_name}}").tag_keys("severity")


def jaeger_service() -> Any:
    """The variable with the agent's service in Jaeger: `service.name`, the job without its namespace."""
    found = f'label_values({TURNS}{{job=~"$job", {THE_AGENT}}}, job)'
    variable = _query("service", "Service in Jaeger", found).regex("/(?:.*\\/)?(.*)/").multi(False).include_all(False)
    return variable.description("Links to Jaeger search in this service, because a search requires one.")


def jaeger() -> Any:
    """The variable with the address of Jaeger's page."""
    variable = builders.TextBoxVariable("jaeger").label("Jaeger").default_value("http://localhost:16686")
    return variable.description("The address of Jaeger's page for links, without a slash at the end.")


def other_dashboard(title: str, name: str, tooltip: str) -> Any:
    """A link that keeps the time range and the selection."""
    link = builders.DashboardLink(title).type(models.DashboardLinkType.LINK).url(f"/d/otel-{name}")
    return link.include_vars(True).keep_time(True).icon("dashboard").tooltip(tooltip)


def jaeger_page() -> Any:
    """A link to Jaeger."""
    link = builders.DashboardLink("Jaeger").type(models.DashboardLinkType.LINK).url("${jaeger:raw}/search")
    return link.icon("external link").target_blank(True).tooltip("The traces behind the numbers")


def _query(name: str, label: str, query: str) -> builders.QueryVariable:
    variable = builders.QueryVariable(name).label(label).datasource(DATASOURCE)
    variable.query(query).definition(query)
    return variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(
        models.VariableSort.ALPHABETICAL_CASE_INSENSITIVE_ASC
    )


def _everything() -> models.VariableOption:
    return models.VariableOption(selected=True, text="All", value="$__all")
