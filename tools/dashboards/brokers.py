"""The dashboard of the nsqds: what waits, what moves, and which nsqd is lost."""

from __future__ import annotations

from tools.dashboards.panels import Dashboard, Panel, Query, Row, rate, series

_CHANNEL = "topic, channel"
_BUSIEST = 15
"""Lines of a panel; a cluster has thousands of channels."""


def _sum(expression: str, by: str) -> str:
    """Return a query for the sum over nsqds; several gateways export the same ones."""
    return f"sum by ({by}) (max by ({by}, node) ({expression}))"


def _largest(expression: str, by: str = _CHANNEL) -> tuple[Query, ...]:
    """Return a query for the largest sums over nsqds."""
    names = " ".join(f"{{{{{name}}}}}" for name in by.split(", "))
    return (Query(expression=f"topk({_BUSIEST}, {_sum(expression, by)})", legend=names),)


def _by_node(expression: str) -> tuple[Query, ...]:
    """Return a query for the sum over channels of each nsqd."""
    return (
        Query(
            expression=f"sum by (node) (max by ({_CHANNEL}, node) ({expression}))",
            legend="{{node}}",
        ),
    )


_NODES = Row(
    title="nsqds",
    panels=(
        Panel(
            title="nsqds that answer",
            description="A line that ends at 0 is an nsqd that answers no more; one that is gone "
            "was removed from nsqlookupd.",
            unit="short",
            queries=(
                Query(
                    expression=f"max by (node) ({series('broker_up')})",
                    legend="{{node}}",
                ),
            ),
        ),
        Panel(
            title="Versions of nsqd",
            description="nsqds by version.",
            unit="short",
            queries=(
                Query(
                    expression="count by (version) (max by (node, version) ("
                    f"{series('broker_info')}))",
                    legend="{{version}}",
                ),
            ),
            is_stacked=True,
        ),
        Panel(
            title="Depth of each nsqd",
            description="Messages that wait in channels.",
            unit="short",
            queries=_by_node(series("broker_channel_depth")),
            is_stacked=True,
        ),
    ),
)
_CHANNELS = Row(
    title="Channels",
    panels=(
        Panel(
            title="Depth",
            description="Messages that wait for a consumer, of the channels with the most.",
            unit="short",
            queries=_largest(series("broker_channel_depth")),
            width=12,
        ),
        Panel(
            title="Messages a second",
            description="Put into channels, of those with the most.",
            unit="cps",
            queries=_largest(rate("broker_channel_messages_total")),
            width=12,
        ),
        Panel(
            title="In flight",
            description="Delivered to consumers, and not yet finished or requeued.",
            unit="short",
            queries=_largest(series("broker_channel_in_flight")),
        ),
        Panel(
            title="Requeued",
            description="By consumers. What is requeued is delivered again.",
            unit="cps",
            queries=_largest(rate("broker_channel_requeued_total")),
        ),
        Panel(
            title="Message timeouts",
            description="Deliveries that no consumer answered before the message timeout.",
            unit="cps",
            queries=_largest(rate("broker_channel_timed_out_total")),
        ),
        Panel(
            title="Deferred",
            description="Messages that wait until their time of delivery.",
            unit="short",
            queries=_largest(series("broker_channel_deferred")),
        ),
        Panel(
            title="Consumers",
            description="Connections to channels, of those with the most.",
            unit="short",
            queries=_largest(series("broker_channel_clients")),
        ),
        Panel(
            title="On disk",
            description="The part of the depth that exceeds nsqd's --mem-queue-size.",
            unit="short",
            queries=_largest(series("broker_channel_backend_depth")),
        ),
    ),
)
_TOPICS = Row(
    title="Topics",
    panels=(
        Panel(
            title="Published a second",
            description="By all producers, also those that do not use a gateway.",
            unit="cps",
            queries=_largest(rate("broker_topic_messages_total"), "topic"),
            width=12,
        ),
        Panel(
            title="Waiting in topics",
            description="Of topics that have no channel or are paused.",
            unit="short",
            queries=_largest(series("broker_topic_depth"), "topic"),
            width=12,
        ),
    ),
)

BROKERS = Dashboard(
    uid="nsq-gateway-brokers",
    title="NSQ gateway: topics and channels",
    description="What waits at the nsqds, what moves, and which nsqd is lost.",
    rows=(_NODES, _CHANNELS, _TOPICS),
)
