{{/* The name of the migration's Job. Helm deletes the Job of a hook before the next one. An ordinary Job cannot be changed, so another specification is another
Job. Each revision of the release makes a new one too, in case the one before gave up. */}}
{{- define "duetime.migrationName" -}}
{{- $name := printf "%s-migrate" (include "duetime.fullname" .) }}
{{- if eq (include "duetime.migrationsMode" .) "hook" }}{{ $name }}{{ else }}{{ printf "%s-%s-%d" $name (printf "%s%s" (include "duetime.migrationSpec" .) (include "duetime.checksums" .) | sha256sum | trunc 8) (int .Release.Revision) }}{{ end }}
{{- end }}

{{/* The specification of the migration's Job */}}
{{- define "duetime.migrationSpec" -}}
{{- $full := include "duetime.fullname" . }}
{{- $hook := eq (include "duetime.migrationsMode" .) "hook" }}
{{- $from := ternary (printf "%s-migrate" $full) $full $hook -}}
backoffLimit: {{ int .Values.migrations.backoffLimit }}
{{- if not (kindIs "invalid" .Values.migrations.activeDeadlineSeconds) }}
activeDeadlineSeconds: {{ int .Values.migrations.activeDeadlineSeconds }}
{{- end }}
{{- if not (kindIs "invalid" .Values.migrations.ttlSecondsAfterFinished) }}
ttlSecondsAfterFinished: {{ int .Values.migrations.ttlSecondsAfterFinished }}
{{- end }}
podFailurePolicy:
  rules:
    # The configuration is refused (1, 2), or this database will refuse each further try too (4).
    - action: FailJob
      onExitCodes:
        containerName: migrate
        operator: In
        values: [1, 2, 4]
      {{- /* The schema of early versions demands it. */}}
      {{- if semverCompare "<1.29-0" .Capabilities.KubeVersion.Version }}
      onPodConditions: []
      {{- end }}
    # A pod that its host evicted has not tried.
    - action: Ignore
      onPodConditions:
        - type: DisruptionTarget
          status: "True"
template:
  metadata:
    labels:
      {{- include "duetime.podLabels" (dict "root" . "component" "migration" "labels" .Values.migrations.podLabels) | nindent 6 }}
    {{- with .Values.migrations.podAnnotations }}
    annotations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    restartPolicy: Never
    {{- /* A hook comes before the release's own ServiceAccount, but not before one that exists already. */}}
    {{- if or (not $hook) (not .Values.serviceAccount.create) }}
    serviceAccountName: {{ include "duetime.serviceAccountName" . | quote }}
    {{- end }}
    {{- include "duetime.pod" . | nindent 4 }}
    {{- with .Values.migrations.extraInitContainers }}
    initContainers:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    containers:
      - name: migrate
        {{- include "duetime.container" (dict "root" .) | nindent 8 }}
        args: [migrate]
        env:
          {{- include "duetime.env" . | nindent 10 }}
          {{- with .Values.extraEnv }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
        {{- with .Values.migrations.resources }}
        resources:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        volumeMounts:
          {{- include "duetime.mounts" . | nindent 10 }}
          {{- with .Values.extraVolumeMounts }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
    volumes:
      {{- include "duetime.volumes" (dict "root" . "config" $from "secrets" $from) | nindent 6 }}
      {{- with .Values.extraVolumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end }}
