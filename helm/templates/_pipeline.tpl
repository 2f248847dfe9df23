{{/* Name of a job's objects, 52 characters at most, as a CronJob wants it: (list . "job") */}}
{{- define "nsq-gateway.jobName" -}}
{{- $suffix := printf "job-%s" (index . 1) -}}
{{- $room := sub 51 (len $suffix) | int -}}
{{- printf "%s-%s" (include "nsq-gateway.fullname" (index . 0) | trunc $room | trimSuffix "-") $suffix -}}
{{- end -}}

{{/* What sets a job's objects apart from the gateway's: (list . "job" "driver or executor") */}}
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

{{/* Who asks the cluster for executors. */}}
{{- define "nsq-gateway.pipelineServiceAccount" -}}
{{- if .Values.pipeline.serviceAccount.create -}}
{{- .Values.pipeline.serviceAccount.name | default (include "nsq-gateway.suffixed" (list . "pipeline")) -}}
{{- else -}}
{{- .Values.pipeline.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* Settings of the gateway that say how NSQ is reached: a job has them, too. */}}
{{- define "nsq-gateway.nsqSettings" -}}
{{- list "nsqd_tcp_address" "nsqd_http_address" "lookupd_http_address" "lookupd_poll_interval_s" "lookupd_poll_jitter" "dial_timeout_ms" "heartbeat_interval_ms" "nsqd_tls_v1" "nsqd_tls_min_version" "nsqd_tls_insecure_skip_verify" "nsqd_snappy" "nsqd_deflate" "nsqd_deflate_level" "auth_secret_file" "nsqd_tls_root_ca_file" "nsqd_tls_cert" "nsqd_tls_key" | toJson -}}
{{- end -}}

{{/* "true" where a job ends by itself: by its schedule, or when somebody starts it. (list . "job") */}}
{{- define "nsq-gateway.isBatch" -}}
{{- $job := index (index . 0).Values.pipeline.jobs (index . 1) -}}
{{- if or $job.schedule (has $job.command (list "compact" "replay")) -}}true{{- end -}}
{{- end -}}

{{/* The settings of a job: the chart's, then what the gateway's say of NSQ, then its own: (list . "job") */}}
{{- define "nsq-gateway.jobSettings" -}}
{{- $root := index . 0 -}}
{{- $job := index $root.Values.pipeline.jobs (index . 1) -}}
{{- $all := dict "log_format" "json" -}}
{{- if not (include "nsq-gateway.isBatch" .) -}}{{- $_ := set $all "management_listen" "0.0.0.0:8081" -}}{{- end -}}
{{- if ne $job.command "compact" -}}
{{- $gateway := include "nsq-gateway.settings" $root | fromJson -}}
{{- range $name := include "nsq-gateway.nsqSettings" . | fromJsonArray -}}
{{- $value := index $gateway $name -}}
{{- /* A file of the gateway's own volumes is not here; those of secrets are. */ -}}
{{- $isElsewhere := and (kindIs "string" $value) (hasPrefix "/" (toString $value)) (not (hasPrefix "/etc/nsq-gateway/secrets/" (toString $value))) -}}
{{- if not (or (kindIs "invalid" $value) $isElsewhere) -}}{{- $_ := set $all $name $value -}}{{- end -}}
{{- end -}}
{{- end -}}
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

{{/* Port of a job's probes and metrics; nothing where it has none. */}}
{{- define "nsq-gateway.jobPort" -}}
{{- include "nsq-gateway.port" ((include "nsq-gateway.jobSettings" . | fromJson).management_listen | default "") -}}
{{- end -}}

{{/* Claim behind /data; nothing where there is no volume: (list . "job") */}}
{{- define "nsq-gateway.jobClaim" -}}
{{- $root := index . 0 -}}
{{- $job := index $root.Values.pipeline.jobs (index . 1) -}}
{{- if $job.claim -}}{{- $job.claim -}}{{- else if $root.Values.pipeline.storage.size -}}{{- include "nsq-gateway.jobName" . -}}{{- end -}}
{{- end -}}

{{/* Secrets that are mounted for a job, by the folder of each. */}}
{{- define "nsq-gateway.jobSecretMounts" -}}
{{- $mounts := dict -}}
{{- range $folder, $name := dict "auth" .Values.secrets.auth.name "nsqd-tls" .Values.secrets.nsqdTls.name -}}
{{- if $name -}}{{- $_ := set $mounts $folder $name -}}{{- end -}}
{{- end -}}
{{- toJson $mounts -}}
{{- end -}}

{{/* Annotations of what runs a job: why policies are waived. (dict "root" . "token" true) */}}
{{- define "nsq-gateway.jobWaivers" -}}
checkov.io/skip1: "CKV_K8S_11=A limit of CPU throttles Spark, and what it has taken from NSQ waits for longer"
{{- if not .root.Values.pipeline.image.digest }}
checkov.io/skip2: "CKV_K8S_43=A tag names the image while no digest is given; set pipeline.image.digest in production"
{{- end }}
{{- if ne .root.Values.image.pullPolicy "Always" }}
checkov.io/skip3: "CKV_K8S_15=A version's tag is never moved, so a node need not ask for an image that it has"
{{- end }}
{{- if not .root.Values.networkPolicy.enabled }}
checkov.io/skip4: "CKV2_K8S_6=Only who installs knows who may come in; networkPolicy.enabled makes the NetworkPolicy"
{{- end }}
{{- if .token }}
checkov.io/skip5: "CKV_K8S_38=The driver asks the API of the cluster for executors, and may do nothing else there"
{{- end }}
checkov.io/skip6: "CKV_K8S_8=A job without management_listen, or one that ends by itself, has nobody to ask"
checkov.io/skip7: "CKV_K8S_9=A job without management_listen, or one that ends by itself, has nobody to ask"
kube-score/ignore: container-resources,container-image-pull-policy,pod-networkpolicy,pod-probes,deployment-replicas,deployment-strategy
nsq-gateway/kube-score-reasons: "No CPU limit, no pull policy Always, probes only where there is management_listen: see checkov.io/skip. One pod only, recreated: two would share one checkpoint. networkPolicy.enabled makes the NetworkPolicy."
{{- end -}}

{{/* The command of a job and its flags. (list . "job") */}}
{{- define "nsq-gateway.jobArguments" -}}
{{- $job := index (index . 0).Values.pipeline.jobs (index . 1) -}}
{{- concat (list $job.command) ($job.arguments | default list) | toJson -}}
{{- end -}}

{{/* Settings of Spark that say where executors run and how they find their driver, for spark-submit. (list . "job") */}}
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
  serviceAccountName: {{ include (ternary "nsq-gateway.pipelineServiceAccount" "nsq-gateway.serviceAccountName" $asks) $root | quote }}
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
        # 0440; Spark reads this, too, and not every reader of YAML takes that for octal.
        defaultMode: 288
    {{- end }}
{{- end -}}

{{/* The pod of a driver that we start ourselves: (list . "job" "restart policy") */}}
{{- define "nsq-gateway.driverPod" -}}
{{- $root := index . 0 -}}
{{- $job := index . 1 -}}
{{- $args := concat (list "pipeline") (include "nsq-gateway.jobArguments" . | fromJsonArray) | toYaml -}}
{{- if eq $root.Values.pipeline.mode "spark-submit" -}}
{{- $args = include "nsq-gateway.submitArguments" (list $root $job) -}}
{{- end -}}
{{- include "nsq-gateway.jobPod" (dict "root" $root "job" $job "role" "driver" "args" $args "restartPolicy" (index . 2) "container" "job") -}}
{{- end -}}

{{/* What an executor's pod is made of: (list . "job") */}}
{{- define "nsq-gateway.executorPod" -}}
{{- include "nsq-gateway.jobPod" (dict "root" (index . 0) "job" (index . 1) "role" "executor" "args" "" "restartPolicy" "" "container" "spark-kubernetes-executor") -}}
{{- end -}}

{{/* spec of a SparkApplication: (list . "job") */}}
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
