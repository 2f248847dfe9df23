"""Check pods against the Pod Security Standard "restricted" of Kubernetes 1.37."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

_VOLUMES = {
    "name",
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_SELINUX_TYPES = {
    None,
    "",
    "container_t",
    "container_init_t",
    "container_kvm_t",
    "container_engine_t",
}
_SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
}
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
_PROFILES = {"RuntimeDefault", "Localhost"}


def violations(metadata: Json, spec: Json) -> list[str]:
    return [*_of_pod(metadata, spec), *_of_containers(spec)]


def _of_pod(metadata: Json, spec: Json) -> Iterator[str]:
    security = spec.get("securityContext") or {}
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name))
    for volume in spec.get("volumes") or []:
        yield from (f"volume {kind}" for kind in volume if kind not in _VOLUMES)
    for sysctl in security.get("sysctls") or []:
        if sysctl["name"] not in _SYSCTLS:
            yield f"sysctl {sysctl['name']}"
    for name, value in (metadata.get("annotations") or {}).items():
        if name.startswith(_APPARMOR) and not (
            value in ("", "runtime/default") or value.startswith("localhost/")
        ):
            yield f"AppArmor {value}"
    yield from _of_security(security)


def _of_security(security: Json) -> Iterator[str]:
    """Yield violations in the security context of a pod or of a container."""
    if (security.get("windowsOptions") or {}).get("hostProcess"):
        yield "hostProcess"
    if security.get("runAsUser") == 0:
        yield "runAsUser 0"
    if security.get("runAsNonRoot") is False:
        yield "runAsNonRoot false"
    selinux = security.get("seLinuxOptions") or {}
    if selinux.get("type") not in _SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
        yield f"seLinuxOptions {selinux}"
    for name in ("seccompProfile", "appArmorProfile"):
        profile = security.get(name)
        if profile is not None and profile.get("type") not in _PROFILES:
            yield f"{name} {profile.get('type')}"


def _of_containers(spec: Json) -> Iterator[str]:
    pod = spec.get("securityContext") or {}
    is_windows = (spec.get("os") or {}).get("name") == "windows"
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(kind) or []:
            security = container.get("securityContext") or {}
            yield from _of_container(container, security)
            if not (security.get("runAsNonRoot") or pod.get("runAsNonRoot")):
                yield "runAsNonRoot is not set"
            if is_windows:
                continue
            if security.get("allowPrivilegeEscalation") is not False:
                yield "allowPrivilegeEscalation"
            yield from _of_capabilities(security.get("capabilities") or {})
            if not (security.get("seccompProfile") or pod.get("seccompProfile")):
                yield "no seccompProfile"


def _of_container(container: Json, security: Json) -> Iterator[str]:
    yield from _of_security(security)
    if security.get("privileged"):
        yield "privileged"
    if security.get("procMount") not in (None, "", "Default"):
        yield f"procMount {security['procMount']}"
    yield from ("hostPort" for port in container.get("ports") or [] if port.get("hostPort"))
    handlers = [container.get(f"{name}Probe") for name in ("liveness", "readiness", "startup")]
    handlers += [(container.get("lifecycle") or {}).get(name) for name in ("postStart", "preStop")]
    for handler in handlers:
        for action in ("httpGet", "tcpSocket"):
            if ((handler or {}).get(action) or {}).get("host"):
                yield f"host of {action}"


def _of_capabilities(capabilities: Json) -> Iterator[str]:
    if "ALL" not in (capabilities.get("drop") or []):
        yield "capabilities are not all dropped"
    added = set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}
    yield from (f"capability {name}" for name in sorted(added))
