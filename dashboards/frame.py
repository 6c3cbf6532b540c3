"""What all dashboards have in common: the JSON with its grid of panels, variables, links and annotations."""

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
    """A titled row of a dashboard and the panels below it, which have one size and fill lines of 24 units."""

    title: str
    panels: tuple[Any, ...]
    width: int = 8
    height: int = 8


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A Grafana dashboard; `name` is its file name and part of its uid, which links to the dashboard contain."""

    name: str
    title: str
    description: str
    sections: tuple[Section, ...]
    variables: tuple[Any, ...]
    links: tuple[Any, ...]
    annotations: tuple[Any, ...]

    def json(self) -> str:
        """Return the JSON file of the dashboard, as Grafana reads it."""
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
        for element in (*written["links"], *written["annotations"]["list"]):
            del element["placement"]  # next to the variables, not in a menu
        # Grafana assigns the id; an id in the file would overwrite the dashboard that has it.
        return json.dumps({"id": None, **written}, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def datasource() -> Any:
    """Return the variable that selects a Prometheus data source."""
    return builders.DatasourceVariable("datasource").label("Data source").type("prometheus")


def job() -> Any:
    """Return the variable that selects services by the label `job`: ``service.namespace/service.name``."""
    query = f"label_values({TURNS}, job)"
    return _query("job", "Service", query).multi(True).include_all(True).all_value(".+").current(_everything())


def instance() -> Any:
    """Return the variable that selects processes.

    The value for all is ``.*``, because the label is missing if a service has no `service.instance.id`.
    """
    query = f'label_values({TURNS}{{job=~"$job"}}, instance)'
    return _query("instance", "Process", query).multi(True).include_all(True).all_value(".*").current(_everything())


def agents() -> Any:
    """Return the variable that selects agents; the value for all is ``.*``, because an agent can have no name."""
    query = f"label_values({TURNS}{{{PROCESSES}}}, gen_ai_agent_name)"
    return _query("agent", "Agent", query).multi(True).include_all(True).all_value(".*").current(_everything())


def one_agent() -> Any:
    """Return the variable that selects exactly one agent."""
    query = f"label_values({TURNS}{{{PROCESSES}}}, gen_ai_agent_name)"
    return _query("agent", "Agent", query).multi(False).include_all(False)


def firing_alerts(agent: str) -> Any:
    """Return the annotations that mark, on every graph, when alerts on the selected services or on servers fired.

    Args:
        agent: A regular expression of agent names. Alerts on a whole service are always included.
    """
    matchers = (
        f'alertname=~"Assembly.+", alertstate="firing", job=~"$job|assembly-stack", gen_ai_agent_name=~"{agent}|"'
    )
    marks = builders.AnnotationQuery().name("Firing alerts").datasource(DATASOURCE).enable(True).icon_color("red")
    marks.expr(f"ALERTS{{{matchers}}}").step(STEP).title_format("{{alertname}}")
    return marks.text_format("{{job}} {{gen_ai_agent_name}} {{assembly_policy_name}}").tag_keys("severity")


def jaeger_service() -> Any:
    """Return the variable with the agent's service name in Jaeger, which is the job without its namespace."""
    query = f'label_values({TURNS}{{job=~"$job", {THE_AGENT}}}, job)'
    variable = _query("service", "Service in Jaeger", query).regex("/(?:.*\\/)?(.*)/").multi(False).include_all(False)
    return variable.description("Links to Jaeger search in this service, because a search requires one.")


def jaeger() -> Any:
    """Return the text field for the address of Jaeger's page, which links use."""
    variable = builders.TextBoxVariable("jaeger").label("Jaeger").default_value("http://localhost:16686")
    return variable.description("The address of Jaeger's page for links, without a slash at the end.")


def other_dashboard(title: str, name: str, tooltip: str) -> Any:
    """Return a link to another dashboard, which opens with the same time range and selection."""
    link = builders.DashboardLink(title).type(models.DashboardLinkType.LINK).url(f"/d/otel-{name}")
    return link.include_vars(True).keep_time(True).icon("dashboard").tooltip(tooltip)


def jaeger_page() -> Any:
    """Return a link to Jaeger's search page."""
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
