{{/* Name of a job's objects, at most 52 characters, the limit of a CronJob: (list . "job") */}}
{{- define "nsq-gateway.jobName" -}}
{{- $suffix := printf "job-%s" (index . 1) -}}
{{- $room := sub 51 (len $suffix) | int -}}
{{- printf "%s-%s" (include "nsq-gateway.fullname" (index . 0) | trunc $room | trimSuffix "-") $suffix -}}
{{- end -}}

{{/* Labels that distinguish a job's objects from the gateway's: (list . "job" "driver or executor") */}}
{{- define "nsq-gateway.jobComponent" -}}
app.kubernetes.io/component: pipeline
nsq-gateway/job: {{ index . 1 | quote }}
{{- with index . 2 }}
nsq-gateway/role: {{ . }}
{{- end }}
{{- end -}}

{{- define "nsq-gateway.jobSelector" -}}
{{- mergeOverwrite (include "nsq-gateway.selectorLabels" (index . 0) | fromYaml) (include "nsq-gateway.jobComponent" . | fromYaml) | toYaml -}}
{{- end -}}

{{/* Labels of every pod of the pipeline, driver or executor. */}}
{{- define "nsq-gateway.pipelineSelector" -}}
{{- mergeOverwrite (include "nsq-gateway.selectorLabels" . | fromYaml) (dict "app.kubernetes.io/component" "pipeline") | toYaml -}}
{{- end -}}

{{- define "nsq-gateway.pipelineImage" -}}
{{- $image := .Values.pipeline.image -}}
{{- $registry := .Values.global.imageRegistry | default $image.registry | default .Values.image.registry -}}
{{- $name := $image.repository -}}
{{- if $registry -}}{{- $name = printf "%s/%s" ($registry | trimSuffix "/") $name -}}{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name ($image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* ServiceAccount of the pods of jobs, for clouds and object stores, and for drivers that create executors by the cluster's API. */}}
{{- define "nsq-gateway.pipelineServiceAccount" -}}
{{- if .Values.pipeline.serviceAccount.create -}}
{{- .Values.pipeline.serviceAccount.name | default (include "nsq-gateway.suffixed" (list . "pipeline")) -}}
{{- else -}}
{{- .Values.pipeline.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* Settings of the gateway for connecting to NSQ, which jobs inherit. */}}
{{- define "nsq-gateway.nsqSettings" -}}
{{- list "nsqd_tcp_address" "nsqd_http_address" "lookupd_http_address" "lookupd_poll_interval_s" "lookupd_poll_jitter" "dial_timeout_ms" "heartbeat_interval_ms" "nsqd_tls_v1" "nsqd_tls_min_version" "nsqd_tls_insecure_skip_verify" "nsqd_snappy" "nsqd_deflate" "nsqd_deflate_level" "auth_secret_file" "nsqd_tls_root_ca_file" "nsqd_tls_cert" "nsqd_tls_key" | toJson -}}
{{- end -}}

{{/* "true" if a job ends by itself: scheduled, or started by hand. (list . "job") */}}
{{- define "nsq-gateway.isBatch" -}}
{{- $job := index (index . 0).Values.pipeline.jobs (index . 1) -}}
{{- if or $job.schedule (has $job.command (list "compact" "vacuum" "replay")) -}}true{{- end -}}
{{- end -}}

{{/* Settings of a job: the chart's, overridden by the gateway's for NSQ, overridden by its own: (list . "job") */}}
{{- define "nsq-gateway.jobSettings" -}}
{{- $root := index . 0 -}}
{{- $job := index $root.Values.pipeline.jobs (index . 1) -}}
{{- $all := dict "log_format" "json" -}}
{{- if include "nsq-gateway.isBatch" . -}}
{{- $_ := set $all "job_name" (printf "%s/%s" $root.Release.Namespace (include "nsq-gateway.jobName" .)) -}}
{{- with $root.Values.pipeline.metricsPushUrl -}}{{- $_ := set $all "metrics_push_url" . -}}{{- end -}}
{{- else -}}
{{- $_ := set $all "management_listen" "0.0.0.0:8081" -}}
{{- end -}}
{{- if not (has $job.command (list "compact" "vacuum")) -}}
{{- $gateway := include "nsq-gateway.settings" $root | fromJson -}}
{{- range $name := include "nsq-gateway.nsqSettings" . | fromJsonArray -}}
{{- $value := index $gateway $name -}}
{{- /* Drop settings with files in the gateway's own volumes; keep those in mounted secrets. */ -}}
{{- $isElsewhere := and (kindIs "string" $value) (hasPrefix "/" (toString $value)) (not (hasPrefix "/etc/nsq-gateway/secrets/" (toString $value))) -}}
{{- if not (or (kindIs "invalid" $value) $isElsewhere) -}}{{- $_ := set $all $name $value -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- /* A job has one kind of NSQ address: its own, otherwise the gateway's nsqlookupd. */ -}}
{{- $own := $job.settings | default dict -}}
{{- $isNsqdOwn := and $own.nsqd_tcp_address (not $own.lookupd_http_address) -}}
{{- if $isNsqdOwn -}}{{- $_ := unset $all "lookupd_http_address" -}}
{{- else if or $own.lookupd_http_address $all.lookupd_http_address -}}{{- $_ := unset $all "nsqd_tcp_address" -}}{{- end -}}
{{- range $name, $value := $job.settings -}}
{{- if kindIs "invalid" $value -}}{{- $_ := unset $all $name -}}{{- else -}}{{- $_ := set $all $name $value -}}{{- end -}}
{{- end -}}
{{- toJson $all -}}
{{- end -}}

{{- define "nsq-gateway.jobToml" -}}
{{- range $name, $value := include "nsq-gateway.jobSettings" . | fromJson }}
{{ $name }} = {{ $value | toJson }}
{{- end }}
{{- end -}}

{{/* Port of a job's probes and metrics; empty without one. */}}
{{- define "nsq-gateway.jobPort" -}}
{{- include "nsq-gateway.port" ((include "nsq-gateway.jobSettings" . | fromJson).management_listen | default "") -}}
{{- end -}}

{{/* PersistentVolumeClaim of /data; empty without a volume: (list . "job") */}}
{{- define "nsq-gateway.jobClaim" -}}
{{- $root := index . 0 -}}
{{- $job := index $root.Values.pipeline.jobs (index . 1) -}}
{{- if $job.claim -}}{{- $job.claim -}}{{- else if include "nsq-gateway.jobStorageSize" . -}}{{- include "nsq-gateway.jobName" . -}}{{- end -}}
{{- end -}}

{{/* Size of the volume created for a job; empty without one: (list . "job") */}}
{{- define "nsq-gateway.jobStorageSize" -}}
{{- $values := (index . 0).Values.pipeline -}}
{{- $job := index $values.jobs (index . 1) -}}
{{- if not $job.claim -}}{{- dig "storage" "size" $values.storage.size $job -}}{{- end -}}
{{- end -}}

{{/* Jobs whose pods mount this job's claim, including itself, as a JSON list: (list . "job") */}}
{{- define "nsq-gateway.claimSharers" -}}
{{- $root := index . 0 -}}
{{- $claim := include "nsq-gateway.jobClaim" . -}}
{{- $found := list -}}
{{- range $name, $_ := $root.Values.pipeline.jobs -}}
{{- if and $claim (eq $claim (include "nsq-gateway.jobClaim" (list $root $name))) -}}{{- $found = append $found $name -}}{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* Seconds after which a run of a finite job fails; 0 means never: (list . "job") */}}
{{- define "nsq-gateway.jobDeadlineSeconds" -}}
{{- $values := (index . 0).Values.pipeline -}}
{{- $job := index $values.jobs (index . 1) -}}
{{- $isByHand := and (eq $job.command "replay") (not $job.schedule) -}}
{{- dig "activeDeadlineSeconds" (ternary 0 $values.activeDeadlineSeconds $isByHand) $job | int -}}
{{- end -}}

{{/* Secrets mounted for a job, by mount directory. */}}
{{- define "nsq-gateway.jobSecretMounts" -}}
{{- $mounts := dict -}}
{{- range $folder, $name := dict "auth" .Values.secrets.auth.name "nsqd-tls" .Values.secrets.nsqdTls.name -}}
{{- if $name -}}{{- $_ := set $mounts $folder $name -}}{{- end -}}
{{- end -}}
{{- toJson $mounts -}}
{{- end -}}

{{/* The command of a job and its flags. (list . "job") */}}
{{- define "nsq-gateway.jobArguments" -}}
{{- $job := index (index . 0).Values.pipeline.jobs (index . 1) -}}
{{- concat (list $job.command) ($job.arguments | default list) | toJson -}}
{{- end -}}

{{/* Spark settings for spark-submit: where executors run, and how they find their driver. (list . "job") */}}
{{- define "nsq-gateway.submitArguments" -}}
{{- $root := index . 0 -}}
{{- $executor := $root.Values.pipeline.executor -}}
{{- $name := include "nsq-gateway.jobName" . -}}
- spark-submit
- --master=k8s://https://kubernetes.default.svc:443
- --deploy-mode=client
- --name={{ $name }}
{{- range $setting, $value := dict
      "spark.kubernetes.namespace" $root.Release.Namespace
      "spark.kubernetes.container.image" (include "nsq-gateway.pipelineImage" $root)
      "spark.kubernetes.container.image.pullPolicy" $root.Values.image.pullPolicy
      "spark.kubernetes.driver.pod.name" "$(POD_NAME)"
      "spark.kubernetes.executor.podNamePrefix" $name
      "spark.kubernetes.executor.podTemplateFile" "/etc/nsq-gateway/executor.yaml"
      "spark.kubernetes.executor.podTemplateContainerName" "spark-kubernetes-executor"
      "spark.driver.host" "$(POD_IP)"
      "spark.driver.port" "7078"
      "spark.blockManager.port" "7079"
      "spark.dynamicAllocation.enabled" "false"
      "spark.executor.instances" $executor.instances
      "spark.executor.cores" $executor.cores
      "spark.executor.memory" $executor.memory
      "spark.executor.memoryOverhead" $executor.memoryOverhead }}
- {{ printf "--conf=%s=%v" $setting $value | quote }}
{{- end }}
- /opt/pyspark_nsq/__main__.py
{{- range include "nsq-gateway.jobArguments" . | fromJsonArray }}
- {{ . }}
{{- end }}
{{- end -}}

{{/*
A pod of the pipeline, as the template of a Deployment, of a CronJob, or of Spark:
  (dict "root" . "job" "name" "role" "driver or executor" "args" "…" "restartPolicy" "" "container" "name")
*/}}
{{- define "nsq-gateway.jobPod" -}}
{{- $root := .root -}}
{{- $values := $root.Values.pipeline -}}
{{- $here := list $root .job .role -}}
{{- $isDriver := eq .role "driver" -}}
{{- $asks := and $isDriver (ne $values.mode "deployment") -}}
{{- $port := ternary (include "nsq-gateway.jobPort" $here) "" $isDriver -}}
{{- $claim := include "nsq-gateway.jobClaim" $here -}}
{{- if not (or $isDriver (has "ReadWriteMany" $values.storage.accessModes)) -}}{{- $claim = "" -}}{{- end -}}
metadata:
  labels:
    {{- mergeOverwrite (dict) $root.Values.commonLabels (include "nsq-gateway.jobSelector" $here | fromYaml) | toYaml | nindent 4 }}
  annotations:
    {{- mergeOverwrite (dict) $root.Values.commonAnnotations (dict "checksum/config" (include "nsq-gateway.jobToml" $here | sha256sum)) | toYaml | nindent 4 }}
spec:
  {{- with .restartPolicy }}
  restartPolicy: {{ . }}
  {{- end }}
  serviceAccountName: {{ include "nsq-gateway.pipelineServiceAccount" $root | quote }}
  automountServiceAccountToken: {{ $asks }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
  {{- with concat $root.Values.global.imagePullSecrets $root.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $root.Values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  securityContext:
    {{- toYaml $root.Values.podSecurityContext | nindent 4 }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- $sharers := include "nsq-gateway.claimSharers" $here | fromJsonArray }}
  {{- if and $isDriver (gt (len $sharers) 1) (not (has "ReadWriteMany" $values.storage.accessModes)) }}
  # Only one node can mount the claim at a time, which the scheduler ignores: a pod on another node would
  # wait for it. The first of these pods may run on any node, because it matches its own rule.
  affinity:
    podAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        - topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- mergeOverwrite (include "nsq-gateway.pipelineSelector" $root | fromYaml) (dict "nsq-gateway/role" "driver") | toYaml | nindent 14 }}
            matchExpressions:
              - {key: nsq-gateway/job, operator: In, values: {{ $sharers | toJson }}}
  {{- end }}
  containers:
    - name: {{ .container }}
      image: {{ include "nsq-gateway.pipelineImage" $root | quote }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      {{- with .args }}
      args:
        {{- . | nindent 8 }}
      {{- end }}
      env:
        - name: NSQ_GATEWAY_CONFIG
          value: /etc/nsq-gateway/job.toml
        {{- if $asks }}
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        {{- end }}
        {{- with $values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if $port }}
      ports:
        - name: management
          containerPort: {{ $port }}
          protocol: TCP
      {{- range $probe, $path := dict "startup" "/livez" "readiness" "/readyz" "liveness" "/livez" }}
      {{ $probe }}Probe:
        httpGet: {path: {{ $path }}, port: management}
        {{- toYaml (index $values.probes $probe) | nindent 8 }}
      {{- end }}
      {{- end }}
      resources:
        {{- toYaml $values.resources | nindent 8 }}
      securityContext:
        {{- toYaml $root.Values.securityContext | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/nsq-gateway/job.toml, subPath: job.toml, readOnly: true}
        {{- if and $asks (eq $values.mode "spark-submit") }}
        - {name: config, mountPath: /etc/nsq-gateway/executor.yaml, subPath: executor.yaml, readOnly: true}
        {{- end }}
        - {name: tmp, mountPath: /tmp}
        {{- if $claim }}
        - {name: data, mountPath: /data}
        {{- end }}
        {{- range $folder, $_ := include "nsq-gateway.jobSecretMounts" $root | fromJson }}
        - name: secret-{{ $folder }}
          mountPath: /etc/nsq-gateway/secrets/{{ $folder }}
          readOnly: true
        {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ include "nsq-gateway.jobName" $here | quote }}
    - name: tmp
      emptyDir:
        sizeLimit: {{ $values.storage.tmpSize }}
    {{- if $claim }}
    - name: data
      persistentVolumeClaim:
        claimName: {{ $claim | quote }}
    {{- end }}
    {{- range $folder, $name := include "nsq-gateway.jobSecretMounts" $root | fromJson }}
    - name: secret-{{ $folder }}
      secret:
        secretName: {{ $name | quote }}
        # 0440 in decimal: Spark reads this file too, and not every YAML parser supports octal.
        defaultMode: 288
    {{- end }}
{{- end -}}

{{/* Pod of a driver that the chart starts: (list . "job" "restart policy") */}}
{{- define "nsq-gateway.driverPod" -}}
{{- $root := index . 0 -}}
{{- $job := index . 1 -}}
{{- $args := concat (list "pipeline") (include "nsq-gateway.jobArguments" . | fromJsonArray) | toYaml -}}
{{- if eq $root.Values.pipeline.mode "spark-submit" -}}
{{- $args = include "nsq-gateway.submitArguments" (list $root $job) -}}
{{- end -}}
{{- include "nsq-gateway.jobPod" (dict "root" $root "job" $job "role" "driver" "args" $args "restartPolicy" (index . 2) "container" "job") -}}
{{- end -}}

{{/* Pod template of executors: (list . "job") */}}
{{- define "nsq-gateway.executorPod" -}}
{{- include "nsq-gateway.jobPod" (dict "root" (index . 0) "job" (index . 1) "role" "executor" "args" "" "restartPolicy" "" "container" "spark-kubernetes-executor") -}}
{{- end -}}

{{/* The spec of a SparkApplication: (list . "job") */}}
{{- define "nsq-gateway.sparkApplication" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $values := $root.Values.pipeline -}}
{{- $job := index $values.jobs $name -}}
type: Python
mode: cluster
sparkVersion: {{ $values.sparkVersion | quote }}
image: {{ include "nsq-gateway.pipelineImage" $root | quote }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
{{- with concat $root.Values.global.imagePullSecrets $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {{ .name | quote }}
  {{- end }}
{{- end }}
mainApplicationFile: local:///opt/pyspark_nsq/__main__.py
arguments: {{ include "nsq-gateway.jobArguments" . }}
restartPolicy:
  type: {{ ternary "Never" "Always" (eq "true" (include "nsq-gateway.isBatch" .)) }}
sparkConf:
  spark.dynamicAllocation.enabled: "false"
  spark.driver.port: "7078"
  spark.blockManager.port: "7079"
  spark.kubernetes.driver.podTemplateContainerName: spark-kubernetes-driver
  spark.kubernetes.executor.podTemplateContainerName: spark-kubernetes-executor
driver:
  cores: {{ $values.driver.cores }}
  memory: {{ $values.driver.memory }}
  memoryOverhead: {{ $values.driver.memoryOverhead }}
  serviceAccount: {{ include "nsq-gateway.pipelineServiceAccount" $root | quote }}
  template:
    {{- include "nsq-gateway.jobPod" (dict "root" $root "job" $name "role" "driver" "args" "" "restartPolicy" "" "container" "spark-kubernetes-driver") | nindent 4 }}
executor:
  instances: {{ $values.executor.instances }}
  cores: {{ $values.executor.cores }}
  memory: {{ $values.executor.memory }}
  memoryOverhead: {{ $values.executor.memoryOverhead }}
  template:
    {{- include "nsq-gateway.executorPod" (list $root $name) | nindent 4 }}
{{- end -}}
