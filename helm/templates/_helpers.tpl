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

{{/* A name made of the full one and a suffix, 63 characters at most: (list . "suffix") */}}
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

{{/* Labels of an object: what is common to all, then ours, which nobody overrides. */}}
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

{{/* The settings that the file holds: those of the values, and where secrets are mounted. */}}
{{- define "nsq-gateway.settings" -}}
{{- $all := dict -}}
{{- range $name, $value := .Values.settings -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $all $name $value -}}{{- end -}}
{{- end -}}
{{- $root := "/etc/nsq-gateway/secrets" -}}
{{- with .Values.secrets -}}
{{- if .auth.name -}}{{- $_ := set $all "auth_secret_file" (printf "%s/auth/%s" $root .auth.key) -}}{{- end -}}
{{- if .admin.name -}}{{- $_ := set $all "admin_secret_file" (printf "%s/admin/%s" $root .admin.key) -}}{{- end -}}
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
{{- if .Values.broker.embedded -}}{{- $_ := set $all "embedded_broker" true -}}{{- end -}}
{{- toJson $all -}}
{{- end -}}

{{/* The file itself: one line for each setting. */}}
{{- define "nsq-gateway.toml" -}}
{{- range $name, $value := include "nsq-gateway.settings" . | fromJson }}
{{ $name }} = {{ $value | toJson }}
{{- end }}
{{- end -}}

{{/* "true" where the public port speaks TLS, by a Secret of the values or by paths in the settings. */}}
{{- define "nsq-gateway.speaksTls" -}}
{{- $settings := include "nsq-gateway.settings" . | fromJson -}}
{{- if or $settings.tls_cert $settings.tls_key -}}true{{- end -}}
{{- end -}}

{{/* "true" where `helm test` can pass: it speaks no TLS, and brings a secret where one is asked for. */}}
{{- define "nsq-gateway.runsTest" -}}
{{- $secret := include "nsq-gateway.testSecret" . | fromJson -}}
{{- if and .Values.tests.enabled (not (include "nsq-gateway.speaksTls" .)) (or .Values.settings.insecure $secret.name) -}}true{{- end -}}
{{- end -}}

{{/* The port at the end of host:port. */}}
{{- define "nsq-gateway.port" -}}
{{- regexFind "[0-9]+$" . -}}
{{- end -}}

{{/* Names of the Secrets that are mounted, by the folder of each. */}}
{{- define "nsq-gateway.secretMounts" -}}
{{- $mounts := dict -}}
{{- range $folder, $name := dict "auth" .Values.secrets.auth.name "admin" .Values.secrets.admin.name "tls" .Values.secrets.tls.name "nsqd-tls" .Values.secrets.nsqdTls.name -}}
{{- if $name -}}{{- $_ := set $mounts $folder $name -}}{{- end -}}
{{- end -}}
{{- toJson $mounts -}}
{{- end -}}

{{/*
Seconds that a pod needs to end, from preStop to its last answer:
  preStop + drain_in_flight_s + drain_window_s + publish_timeout_ms + 1 s for an answer,
  + 10 s in which sockets are left and NSQ is taken leave of, + 5 s to spare.
*/}}
{{- define "nsq-gateway.leastGraceSeconds" -}}
{{- $settings := .Values.settings -}}
{{- $inFlight := ternary 10 $settings.drain_in_flight_s (kindIs "invalid" $settings.drain_in_flight_s) -}}
{{- $window := ternary 5 $settings.drain_window_s (kindIs "invalid" $settings.drain_window_s) -}}
{{- $answerMs := ternary 5000 $settings.publish_timeout_ms (kindIs "invalid" $settings.publish_timeout_ms) -}}
{{- $answer := addf 1 (divf $answerMs 1000) -}}
{{- addf .Values.lifecycle.preStopSleepSeconds $inFlight $window $answer 15 | ceil | int -}}
{{- end -}}

{{- define "nsq-gateway.graceSeconds" -}}
{{- .Values.terminationGracePeriodSeconds | default (include "nsq-gateway.leastGraceSeconds" .) -}}
{{- end -}}

{{/* Most pods, whoever decides. */}}
{{- define "nsq-gateway.maxReplicas" -}}
{{- ternary .Values.autoscaling.maxReplicas .Values.replicaCount (or .Values.autoscaling.enabled .Values.keda.enabled) -}}
{{- end -}}

{{/*
One step of a rollout: a pod starts, proves itself, and its predecessor ends. Kubernetes counts from the last
step that was made, however many there are.
*/}}
{{- define "nsq-gateway.leastProgressSeconds" -}}
{{- $startup := mul .Values.probes.startup.periodSeconds .Values.probes.startup.failureThreshold -}}
{{- add (include "nsq-gateway.graceSeconds" . | int) .Values.minReadySeconds $startup -}}
{{- end -}}

{{- define "nsq-gateway.progressSeconds" -}}
{{- .Values.progressDeadlineSeconds | default (max 600 (include "nsq-gateway.leastProgressSeconds" . | int)) -}}
{{- end -}}

{{/*
What Prometheus finds the pods of this release by, and no other's: Kubernetes calls a pod NAME-HASH-FIVE, and cuts
the middle where a name is long.
*/}}
{{- define "nsq-gateway.podPattern" -}}
{{- $fullname := include "nsq-gateway.fullname" . -}}
{{- if gt (len $fullname) 46 -}}
{{- printf "%s[-a-z0-9]+" (trunc 46 $fullname) -}}
{{- else -}}
{{- printf "%s-[a-z0-9]+-[a-z0-9]{5}" $fullname -}}
{{- end -}}
{{- end -}}

{{/* The secret that `helm test` brings: a reference, or nothing. */}}
{{- define "nsq-gateway.testSecret" -}}
{{- if .Values.tests.authSecret.name -}}
{{- .Values.tests.authSecret | toJson -}}
{{- else if .Values.secrets.auth.name -}}
{{- .Values.secrets.auth | toJson -}}
{{- else -}}
{}
{{- end -}}
{{- end -}}

{{/* The seconds of 30s or 2m. */}}
{{- define "nsq-gateway.seconds" -}}
{{- $number := regexFind "^[0-9]+" . | int -}}
{{- ternary (mul 60 $number) $number (hasSuffix "m" .) -}}
{{- end -}}

{{/* What both containers of `helm test` have: (dict "root" . "secret" "name or nothing") */}}
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
