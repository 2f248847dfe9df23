{{/* The pod, for the Deployment and the StatefulSet: its metadata and its spec. */}}
{{- define "nsq-gateway.podTemplate" -}}
{{- $fullname := include "nsq-gateway.fullname" . -}}
{{- $settings := include "nsq-gateway.settings" . | fromJson -}}
metadata:
  labels:
    {{- /* Omit the version of the chart: a new one alone must not restart the pods, which closes every socket. */}}
    {{- mergeOverwrite (dict) .Values.commonLabels .Values.podLabels (include "nsq-gateway.selectorLabels" . | fromYaml) | toYaml | nindent 4 }}
  annotations:
    {{- mergeOverwrite (dict) .Values.commonAnnotations .Values.podAnnotations (dict "checksum/config" (include "nsq-gateway.toml" . | sha256sum)) | toYaml | nindent 4 }}
spec:
  serviceAccountName: {{ include "nsq-gateway.serviceAccountName" . | quote }}
  automountServiceAccountToken: false
  # Otherwise a Service with our name would add environment variables that look like settings.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "nsq-gateway.graceSeconds" . }}
  {{- with concat .Values.global.imagePullSecrets .Values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with .Values.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    - {{- toYaml . | nindent 6 }}
      {{- if not .labelSelector }}
      labelSelector:
        matchLabels:
          {{- include "nsq-gateway.selectorLabels" $ | nindent 10 }}
      {{- end }}
    {{- end }}
  {{- end }}
  {{- with .Values.extraInitContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: gateway
      image: {{ include "nsq-gateway.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve]
      env:
        - name: NSQ_GATEWAY_CONFIG
          value: /etc/nsq-gateway/gateway.toml
        # The image sets both variables, and a variable overrides the file.
        - name: NSQ_GATEWAY_LISTEN
          value: {{ $settings.listen | quote }}
        - name: NSQ_GATEWAY_MANAGEMENT_LISTEN
          value: {{ $settings.management_listen | quote }}
        {{- if .Values.leases.secret }}
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        - name: NSQ_GATEWAY_ADVERTISE_ADDRESS
          # In the form of the address that the pod listens on.
          value: "{{ ternary "[$(POD_IP)]" "$(POD_IP)" (hasPrefix "[" $settings.management_listen) }}:{{ include "nsq-gateway.port" .Values.settings.management_listen }}"
        {{- end }}
        {{- with .Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .Values.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - name: http
          containerPort: {{ include "nsq-gateway.port" .Values.settings.listen }}
          protocol: TCP
        - name: management
          containerPort: {{ include "nsq-gateway.port" .Values.settings.management_listen }}
          protocol: TCP
        {{- if .Values.authServer.enabled }}
        - name: auth
          containerPort: {{ .Values.authServer.port }}
          protocol: TCP
        {{- end }}
      startupProbe:
        httpGet: {path: /readyz, port: management}
        {{- toYaml .Values.probes.startup | nindent 8 }}
      readinessProbe:
        httpGet: {path: /readyz, port: management}
        {{- toYaml .Values.probes.readiness | nindent 8 }}
      livenessProbe:
        httpGet: {path: /livez, port: management}
        {{- toYaml .Values.probes.liveness | nindent 8 }}
      {{- with .Values.lifecycle.preStopSleepSeconds }}
      lifecycle:
        preStop:
          sleep:
            seconds: {{ . }}
      {{- end }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        {{- toYaml .Values.securityContext | nindent 8 }}
      volumeMounts:
        - name: config
          mountPath: /etc/nsq-gateway/gateway.toml
          subPath: gateway.toml
          readOnly: true
        - name: tmp
          mountPath: /tmp
        {{- if include "nsq-gateway.keepsMessages" . }}
        - name: messages
          mountPath: /data
        {{- end }}
        {{- if include "nsq-gateway.accessKey" . }}
        # Not a subPath, which would not follow changes of the Secret or ConfigMap.
        - name: access
          mountPath: /etc/nsq-gateway/access
          readOnly: true
        {{- end }}
        {{- range $folder, $_ := include "nsq-gateway.secretMounts" . | fromJson }}
        - name: secret-{{ $folder }}
          mountPath: /etc/nsq-gateway/secrets/{{ $folder }}
          readOnly: true
        {{- end }}
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with .Values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ $fullname | quote }}
    - name: tmp
      emptyDir:
        sizeLimit: 16Mi
    {{- if and (include "nsq-gateway.keepsMessages" .) .Values.broker.persistence.existingClaim }}
    - name: messages
      persistentVolumeClaim:
        claimName: {{ include "nsq-gateway.messagesClaim" . | quote }}
    {{- end }}
    {{- if include "nsq-gateway.accessKey" . }}
    - name: access
      {{- if .Values.access.configMap.name }}
      configMap:
        name: {{ .Values.access.configMap.name | quote }}
      {{- else }}
      secret:
        secretName: {{ .Values.access.secret.name | default (include "nsq-gateway.accessSecretName" .) | quote }}
        defaultMode: 0440
      {{- end }}
    {{- end }}
    {{- range $folder, $name := include "nsq-gateway.secretMounts" . | fromJson }}
    - name: secret-{{ $folder }}
      secret:
        secretName: {{ $name | quote }}
        defaultMode: 0440
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
