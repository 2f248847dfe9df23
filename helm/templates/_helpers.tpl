{{- define "nsq-gateway.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "nsq-gateway.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "nsq-gateway.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" if the pod is that of a StatefulSet, with the broker's messages on a volume. */}}
{{- define "nsq-gateway.keepsMessages" -}}
{{- if and .Values.broker.embedded .Values.broker.persistence.enabled -}}true{{- end -}}
{{- end -}}

{{/*
Name of the StatefulSet: Kubernetes appends "-" and a hash of ten characters, and uses that as a label, which has at
most 63.
*/}}
{{- define "nsq-gateway.statefulSetName" -}}
{{- include "nsq-gateway.fullname" . | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* What has the pods, as kubectl takes it: deployment/NAME or statefulset/NAME. */}}
{{- define "nsq-gateway.workload" -}}
{{- if include "nsq-gateway.keepsMessages" . -}}
statefulset/{{ include "nsq-gateway.statefulSetName" . }}
{{- else -}}
deployment/{{ include "nsq-gateway.fullname" . }}
{{- end -}}
{{- end -}}

{{/* The claim with the broker's messages; a StatefulSet names its own after the volume, itself and the pod. */}}
{{- define "nsq-gateway.messagesClaim" -}}
{{- .Values.broker.persistence.existingClaim | default (printf "messages-%s-0" (include "nsq-gateway.statefulSetName" .)) -}}
{{- end -}}

{{/* The full name with a suffix, at most 63 characters: (list . "suffix") */}}
{{- define "nsq-gateway.suffixed" -}}
{{- $suffix := index . 1 | trunc 40 | trimSuffix "-" -}}
{{- $room := sub 62 (len $suffix) | int -}}
{{- printf "%s-%s" (include "nsq-gateway.fullname" (index . 0) | trunc $room | trimSuffix "-") $suffix -}}
{{- end -}}

{{- define "nsq-gateway.selectorLabels" -}}
app.kubernetes.io/name: {{ include "nsq-gateway.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: gateway
{{- end -}}

{{/* Labels of an object: commonLabels, then the fixed ones, which values cannot override. */}}
{{- define "nsq-gateway.labels" -}}
{{- $ours := dict
      "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")
      "app.kubernetes.io/version" (.Chart.AppVersion | toString)
      "app.kubernetes.io/managed-by" .Release.Service
      "app.kubernetes.io/part-of" "nsq-gateway" -}}
{{- $selector := include "nsq-gateway.selectorLabels" . | fromYaml -}}
{{- mergeOverwrite (dict) .Values.commonLabels $ours $selector | toYaml -}}
{{- end -}}

{{/* Metadata of an object: (dict "root" . "name" … "labels" {…} "annotations" {…}) */}}
{{- define "nsq-gateway.metadata" -}}
name: {{ .name | quote }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- mergeOverwrite (dict) (.labels | default dict) (include "nsq-gateway.labels" .root | fromYaml) (.component | default dict) | toYaml | nindent 2 }}
{{- with mergeOverwrite (dict) .root.Values.commonAnnotations (.annotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "nsq-gateway.image" -}}
{{- $registry := .Values.global.imageRegistry | default .Values.image.registry -}}
{{- $name := .Values.image.repository -}}
{{- if $registry -}}{{- $name = printf "%s/%s" ($registry | trimSuffix "/") $name -}}{{- end -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $name .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "nsq-gateway.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "nsq-gateway.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* Settings in the file: those of the values, and the paths of mounted secrets. */}}
{{- define "nsq-gateway.settings" -}}
{{- $all := dict -}}
{{- range $name, $value := .Values.settings -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $all $name $value -}}{{- end -}}
{{- end -}}
{{- $root := "/etc/nsq-gateway/secrets" -}}
{{- with .Values.secrets -}}
{{- if .auth.name -}}{{- $_ := set $all "auth_secret_file" (printf "%s/auth/%s" $root .auth.key) -}}{{- end -}}
{{- if .admin.name -}}{{- $_ := set $all "admin_secret_file" (printf "%s/admin/%s" $root .admin.key) -}}{{- end -}}
{{- if $.Values.leases.secret -}}{{- $_ := set $all "lease_key_file" (printf "%s/leases/%s" $root $.Values.leases.key) -}}{{- end -}}
{{- if .tls.name -}}
{{- $_ := set $all "tls_cert" (printf "%s/tls/%s" $root .tls.certKey) -}}
{{- $_ := set $all "tls_key" (printf "%s/tls/%s" $root .tls.keyKey) -}}
{{- end -}}
{{- if .nsqdTls.name -}}
{{- $_ := set $all "nsqd_tls_v1" true -}}
{{- range $setting, $key := dict "nsqd_tls_root_ca_file" .nsqdTls.caKey "nsqd_tls_cert" .nsqdTls.certKey "nsqd_tls_key" .nsqdTls.keyKey -}}
{{- if $key -}}{{- $_ := set $all $setting (printf "%s/nsqd-tls/%s" $root $key) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with include "nsq-gateway.accessKey" . -}}{{- $_ := set $all "access_file" (printf "/etc/nsq-gateway/access/%s" .) -}}{{- end -}}
{{- if .Values.authServer.enabled -}}
{{- /* On the addresses of the public port, which may be those of IPv6. */ -}}
{{- $_ := set $all "auth_listen" (regexReplaceAll "[0-9]+$" (.Values.settings.listen | default "") (.Values.authServer.port | toString)) -}}
{{- end -}}
{{- if .Values.broker.embedded -}}{{- $_ := set $all "embedded_broker" true -}}{{- end -}}
{{- if include "nsq-gateway.keepsMessages" . -}}{{- $_ := set $all "broker_data_path" "/data" -}}{{- end -}}
{{- if and (kindIs "invalid" .Values.settings.sockets_buffer_bytes) (dig "limits" "memory" "" .Values.resources) -}}
{{- $_ := set $all "sockets_buffer_bytes" (include "nsq-gateway.socketsRoomBytes" . | int64 | max 1048576) -}}
{{- end -}}
{{- toJson $all -}}
{{- end -}}

{{/* Name of the Secret with access.content. */}}
{{- define "nsq-gateway.accessSecretName" -}}
{{- include "nsq-gateway.suffixed" (list . "access") -}}
{{- end -}}

{{/* Name of the access file in its Secret or ConfigMap; empty without one in the values. */}}
{{- define "nsq-gateway.accessKey" -}}
{{- with .Values.access -}}
{{- if .secret.name -}}{{- .secret.key -}}
{{- else if .configMap.name -}}{{- .configMap.key -}}
{{- else if .content -}}access.toml
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Bytes of a quantity such as 1Gi, 1500M or 1073741824. */}}
{{- define "nsq-gateway.bytes" -}}
{{- if kindIs "string" . -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $unit := regexFind "[kKMGT]i?$" . -}}
{{- mulf (. | trimSuffix $unit | float64) (index $units $unit) | int64 -}}
{{- else -}}
{{- int64 . -}}
{{- end -}}
{{- end -}}

{{/*
Unsent bytes allowed for all sockets together (sockets_buffer_bytes): the rest of the memory limit. Each counted byte
needs 1.25 bytes of memory; docs/kubernetes.md explains the other numbers.
*/}}
{{- define "nsq-gateway.socketsRoomBytes" -}}
{{- $settings := .Values.settings -}}
{{- $sockets := ternary 1000 $settings.max_sockets (kindIs "invalid" $settings.max_sockets) -}}
{{- $http := ternary 10000 $settings.max_http_connections (kindIs "invalid" $settings.max_http_connections) -}}
{{- $publish := ternary 67108864 $settings.publish_buffer_bytes (kindIs "invalid" $settings.publish_buffer_bytes) -}}
{{- $connections := ternary 4 $settings.nsqd_connections (kindIs "invalid" $settings.nsqd_connections) -}}
{{- $taken := addf (mul 72 1048576) (mulf 1.1 $publish) (mulf 3 2097152 $connections) (mulf 12288 $http) (mulf 73728 $sockets) -}}
{{- /* Up to half of its own limit, 1 GiB, the broker keeps messages in memory; beyond that, one for each channel. */ -}}
{{- if include "nsq-gateway.keepsMessages" . -}}{{- $taken = addf $taken (mul 512 1048576) -}}{{- end -}}
{{- divf (subf (include "nsq-gateway.bytes" .Values.resources.limits.memory | float64) $taken) 1.25 | floor | int64 -}}
{{- end -}}

{{/* Content of the settings file: one line for each setting. */}}
{{- define "nsq-gateway.toml" -}}
{{- range $name, $value := include "nsq-gateway.settings" . | fromJson }}
{{ $name }} = {{ $value | toJson }}
{{- end }}
{{- end -}}

{{/* "true" if the public port uses TLS, from a Secret of the values or from paths in the settings. */}}
{{- define "nsq-gateway.speaksTls" -}}
{{- $settings := include "nsq-gateway.settings" . | fromJson -}}
{{- if or $settings.tls_cert $settings.tls_key -}}true{{- end -}}
{{- end -}}

{{/*
"true" if an Ingress routes to pods that use TLS without an annotation for it. There is no standard annotation; each
controller has its own, on the Ingress or on the Service: backend-protocol (ingress-nginx, HAProxy Ingress, AWS),
serversscheme (Traefik), server-ssl (HAProxy), upstream-protocol (Contour), app-protocols (GKE), ssl-services (NGINX).
*/}}
{{- define "nsq-gateway.ingressSpeaksPlain" -}}
{{- if and .Values.ingress.enabled (include "nsq-gateway.speaksTls" .) -}}
{{- $names := concat (keys .Values.ingress.annotations) (keys .Values.service.annotations) (keys .Values.commonAnnotations) | join " " -}}
{{- if not (regexMatch "backend-protocol|serversscheme|serverstransport|server-ssl|upstream-protocol|app-protocols|ssl-services" $names) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" if an access file says who may do what: that of the values, or a path in the settings. */}}
{{- define "nsq-gateway.hasAccessFile" -}}
{{- if (include "nsq-gateway.settings" . | fromJson).access_file -}}true{{- end -}}
{{- end -}}

{{/* "true" if `helm test` can pass: it does not support TLS, and needs a secret if callers do. */}}
{{- define "nsq-gateway.runsTest" -}}
{{- $secret := include "nsq-gateway.testSecret" . | fromJson -}}
{{- $isOpen := and .Values.settings.insecure (not (include "nsq-gateway.hasAccessFile" .)) -}}
{{- if and .Values.tests.enabled (not (include "nsq-gateway.speaksTls" .)) (or $isOpen $secret.name) -}}true{{- end -}}
{{- end -}}

{{/* The port at the end of host:port. */}}
{{- define "nsq-gateway.port" -}}
{{- regexFind "[0-9]+$" . -}}
{{- end -}}

{{/* Names of the mounted Secrets, by mount directory. */}}
{{- define "nsq-gateway.secretMounts" -}}
{{- $mounts := dict -}}
{{- range $folder, $name := dict "auth" .Values.secrets.auth.name "admin" .Values.secrets.admin.name "tls" .Values.secrets.tls.name "nsqd-tls" .Values.secrets.nsqdTls.name "leases" .Values.leases.secret -}}
{{- if $name -}}{{- $_ := set $mounts $folder $name -}}{{- end -}}
{{- end -}}
{{- toJson $mounts -}}
{{- end -}}

{{/*
Seconds that a pod needs to terminate, from preStop to its last response:
  preStop + drain_delay_s + drain_in_flight_s + drain_window_s + publish_timeout_ms + 1 s for a response,
  + 10 s to disconnect from NSQ, + 5 s margin.
*/}}
{{- define "nsq-gateway.leastGraceSeconds" -}}
{{- $settings := .Values.settings -}}
{{- $delay := ternary 0 $settings.drain_delay_s (kindIs "invalid" $settings.drain_delay_s) -}}
{{- $inFlight := ternary 10 $settings.drain_in_flight_s (kindIs "invalid" $settings.drain_in_flight_s) -}}
{{- $window := ternary 5 $settings.drain_window_s (kindIs "invalid" $settings.drain_window_s) -}}
{{- $answerMs := ternary 5000 $settings.publish_timeout_ms (kindIs "invalid" $settings.publish_timeout_ms) -}}
{{- $answer := addf 1 (divf $answerMs 1000) -}}
{{- addf .Values.lifecycle.preStopSleepSeconds $delay $inFlight $window $answer 15 | ceil | int -}}
{{- end -}}

{{- define "nsq-gateway.graceSeconds" -}}
{{- .Values.terminationGracePeriodSeconds | default (include "nsq-gateway.leastGraceSeconds" .) -}}
{{- end -}}

{{/* Maximum number of pods, of the autoscaler or the Deployment. */}}
{{- define "nsq-gateway.maxReplicas" -}}
{{- ternary .Values.autoscaling.maxReplicas .Values.replicaCount (or .Values.autoscaling.enabled .Values.keda.enabled) -}}
{{- end -}}

{{/*
Duration of one step of a rollout: a pod starts and becomes ready, and its predecessor terminates. Kubernetes counts
progressDeadlineSeconds from the last completed step, so the number of pods does not matter.
*/}}
{{- define "nsq-gateway.leastProgressSeconds" -}}
{{- $startup := mul .Values.probes.startup.periodSeconds .Values.probes.startup.failureThreshold -}}
{{- add (include "nsq-gateway.graceSeconds" . | int) .Values.minReadySeconds $startup -}}
{{- end -}}

{{- define "nsq-gateway.progressSeconds" -}}
{{- .Values.progressDeadlineSeconds | default (max 600 (include "nsq-gateway.leastProgressSeconds" . | int)) -}}
{{- end -}}

{{/*
Regular expression for the names of this release's pods in Prometheus. Kubernetes names a pod NAME-HASH-SUFFIX (five
characters), and truncates NAME-HASH if it is too long.
*/}}
{{- define "nsq-gateway.podPattern" -}}
{{- $fullname := include "nsq-gateway.fullname" . -}}
{{- if gt (len $fullname) 46 -}}
{{- printf "%s[-a-z0-9]+" (trunc 46 $fullname) -}}
{{- else -}}
{{- printf "%s-[a-z0-9]+-[a-z0-9]{5}" $fullname -}}
{{- end -}}
{{- end -}}

{{/* Secret used by `helm test`: a reference, or empty. */}}
{{- define "nsq-gateway.testSecret" -}}
{{- if .Values.tests.authSecret.name -}}
{{- .Values.tests.authSecret | toJson -}}
{{- else if and .Values.secrets.auth.name (not (include "nsq-gateway.hasAccessFile" .)) -}}
{{- .Values.secrets.auth | toJson -}}
{{- else -}}
{}
{{- end -}}
{{- end -}}

{{/* Seconds of a duration such as 30s or 2m. */}}
{{- define "nsq-gateway.seconds" -}}
{{- $number := regexFind "^[0-9]+" . | int -}}
{{- ternary (mul 60 $number) $number (hasSuffix "m" .) -}}
{{- end -}}

{{/* Common fields of both containers of `helm test`: (dict "root" . "secret" "name or nothing") */}}
{{- define "nsq-gateway.testContainer" -}}
image: {{ include "nsq-gateway.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
resources:
  {{- toYaml .root.Values.resources | nindent 2 }}
securityContext:
  {{- toYaml .root.Values.securityContext | nindent 2 }}
{{- if .secret }}
volumeMounts:
  - {name: secret, mountPath: /etc/nsq-gateway/secrets, readOnly: true}
{{- end }}
{{- end -}}
