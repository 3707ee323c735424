{{/*
The groups of files/rules.yaml as `metrics.prometheusRule` changes them, as YAML with the one key `groups`:

  runbookBaseUrl: https://wiki.example.org/duetime    # where docs/runbooks can be read; empty: as in the file
  alerts:                                             # by name; what is left out stays as it is in the file
    DuetimeTasksOverdue: {threshold: 30, for: 2m, severity: warning}
    DuetimeHeapFull: {enabled: false}

The threshold of an alert is the number that its expression ends with.
*/}}
{{- define "duetime.ruleGroups" -}}
{{- $settings := .Values.metrics.prometheusRule }}
{{- $changes := deepCopy ($settings.alerts | default dict) }}
{{- $groups := list }}
{{- range $group := (.Files.Get "files/rules.yaml" | fromYaml).groups }}
  {{- $rules := list }}
  {{- range $rule := $group.rules }}
    {{- $name := $rule.alert | default "" }}
    {{- $change := get $changes $name | default dict }}
    {{- $_ := unset $changes $name }}
    {{- if hasKey $change "threshold" }}
      {{- if not (regexMatch "[<>] [0-9.]+$" $rule.expr) }}
        {{- fail (printf "metrics.prometheusRule.alerts.%s.threshold: this alert has no threshold" $name) }}
      {{- end }}
      {{- $_ := set $rule "expr" (regexReplaceAll "[0-9.]+$" $rule.expr (toString $change.threshold)) }}
    {{- end }}
    {{- if hasKey $change "for" }}
      {{- $_ := set $rule "for" $change.for }}
    {{- end }}
    {{- if hasKey $change "severity" }}
      {{- $_ := set $rule.labels "severity" $change.severity }}
    {{- end }}
    {{- if and $name $settings.runbookBaseUrl }}
      {{- $_ := set $rule.annotations "runbook_url" (printf "%s/%s.md" (trimSuffix "/" $settings.runbookBaseUrl) $name) }}
    {{- end }}
    {{- if or (not (hasKey $change "enabled")) $change.enabled }}
      {{- $rules = append $rules $rule }}
    {{- end }}
  {{- end }}
  {{- if $rules }}
    {{- $groups = append $groups (set $group "rules" $rules) }}
  {{- end }}
{{- end }}
{{- range $name, $_ := $changes }}
  {{- fail (printf "metrics.prometheusRule.alerts.%s: there is no such alert" $name) }}
{{- end }}
{{- toYaml (dict "groups" $groups) }}
{{- end }}
