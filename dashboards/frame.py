"""What every dashboard has around its panels: variables, links, time range, and the grid."""

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
    """A row with a title, and panels of one size beside each other under it, as many to a line as fit."""

    title: str
    panels: tuple[Any, ...]
    width: int = 8
    height: int = 8


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard; `name` is the name of its file, and the id by which others link to it."""

    name: str
    title: str
    description: str
    sections: tuple[Section, ...]
    variables: tuple[Any, ...]
    links: tuple[Any, ...]
    annotations: tuple[Any, ...]

    def json(self) -> str:
        """What is committed, and what Grafana reads."""
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
            del one["placement"]  # beside the variables, not hidden in a menu
        # Grafana gives the number; one that is in the file would overwrite whatever has it there.
        return json.dumps({"id": None, **written}, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def datasource() -> Any:
    """Which Prometheus."""
    return builders.DatasourceVariable("datasource").label("Data source").type("prometheus")


def job() -> Any:
    """Which services: the label that Prometheus makes of `service.namespace` and `service.name`."""
    found = f"label_values({TURNS}, job)"
    return _query("job", "Service", found).multi(True).include_all(True).all_value(".+").current(_everything())


def instance() -> Any:
    """Which processes; a service without `service.instance.id` has no such label, so all is any value or none."""
    found = f'label_values({TURNS}{{job=~"$job"}}, instance)'
    return _query("instance", "Process", found).multi(True).include_all(True).all_value(".*").current(_everything())


def agents() -> Any:
    """Which agents; one need not have a name."""
    found = f"label_values({TURNS}{{{PROCESSES}}}, gen_ai_agent_name)"
    return _query("agent", "Agent", found).multi(True).include_all(True).all_value(".*").current(_everything())


def one_agent() -> Any:
    """Which agent."""
    found = f"label_values({TURNS}{{{PROCESSES}}}, gen_ai_agent_name)"
    return _query("agent", "Agent", found).multi(False).include_all(False)


def firing_alerts(agent: str) -> Any:
    """Marks on every graph from when to when an alert fired: of what is chosen, and of the servers.

    Args:
        agent: Which agents, as a pattern; an alert on a whole service names none.
    """
    which = f'alertname=~"Assembly.+", alertstate="firing", job=~"$job|assembly-stack", gen_ai_agent_name=~"{agent}|"'
    marks = builders.AnnotationQuery().name("Firing alerts").datasource(DATASOURCE).enable(True).icon_color("red")
    marks.expr(f"ALERTS{{{which}}}").step(STEP).title_format("{{alertname}}")
    return marks.text_format("{{job}} {{gen_ai_agent_name}} {{assembly_policy_name}}").tag_keys("severity")


def jaeger_service() -> Any:
    """What Jaeger calls the service in which the agent runs: `service.name`, which is the job without its namespace."""
    found = f'label_values({TURNS}{{job=~"$job", {THE_AGENT}}}, job)'
    variable = _query("service", "Service in Jaeger", found).regex("/(?:.*\\/)?(.*)/").multi(False).include_all(False)
    return variable.description("The links to Jaeger search in this service: its search takes one.")


def jaeger() -> Any:
    """Where Jaeger's page is."""
    variable = builders.TextBoxVariable("jaeger").label("Jaeger").default_value("http://localhost:16686")
    return variable.description("The address of Jaeger's page, for the links; without a slash at its end.")


def other_dashboard(title: str, name: str, tooltip: str) -> Any:
    """A link that keeps the time range and what was chosen."""
    link = builders.DashboardLink(title).type(models.DashboardLinkType.LINK).url(f"/d/otel-{name}")
    return link.include_vars(True).keep_time(True).icon("dashboard").tooltip(tooltip)


def jaeger_page() -> Any:
    """A link to Jaeger itself."""
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
