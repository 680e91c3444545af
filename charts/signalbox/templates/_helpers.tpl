{{/* The name of everything: the release's, or the chart's where the release has it in its name. */}}
{{- define "signalbox.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "signalbox.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "signalbox.labels" -}}
{{ include "signalbox.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: {{ .Chart.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "signalbox.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "signalbox.fullname" .) }}
{{- end }}

{{- define "signalbox.webhookService" -}}
{{ include "signalbox.fullname" . }}-webhook
{{- end }}

{{- define "signalbox.secret" -}}
{{ .Values.certificates.secretName | default (printf "%s-webhook-cert" (include "signalbox.fullname" .)) }}
{{- end }}

{{- define "signalbox.image" -}}
{{- with .Values.image -}}
{{ with .registry }}{{ . }}/{{ end }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* What Go may use of a memory limit in Mi or Gi: four fifths; nothing where there is none. */}}
{{- define "signalbox.memory" -}}
{{- $limit := ((.Values.resources).limits).memory | default "" | toString -}}
{{- if regexMatch "^[0-9]+[MG]i$" $limit -}}
{{ div (mul (regexFind "^[0-9]+" $limit | int) (ternary 4 4096 (hasSuffix "Mi" $limit))) 5 }}MiB
{{- end }}
{{- end }}

{{/* The roles that are installed: the integration, and the bundled Trainer where it is on. */}}
{{- define "signalbox.roles" -}}
integration{{ if .Values.trainer.enabled }} trainer{{ end }}
{{- end }}

{{/* The user that the managers are. */}}
{{- define "signalbox.user" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "signalbox.serviceAccount" . }}
{{- end }}

{{/* CEL: whoever asks is none of those who write the children of TrainJobs. */}}
{{- define "signalbox.others" -}}
{{- $kueue := printf "system:serviceaccount:%s:%s" .Values.kueue.namespace .Values.kueue.serviceAccount }}
{{- $users := prepend (concat .Values.policies.exemptUsers (list "system:kube-controller-manager" "system:kube-scheduler" $kueue)) (include "signalbox.user" .) }}
{{- $groups := concat .Values.policies.exemptGroups (list "system:serviceaccounts:kube-system" "system:nodes") }}
{{- printf "!(request.userInfo.username in %s) && !(has(request.userInfo.groups) && request.userInfo.groups.exists(g, g in %s))" (toJson $users | replace "\"" "'") (toJson $groups | replace "\"" "'") }}
{{- end }}

{{/* CEL: whoever asks isn't listed in policies.exemptUsers and exemptGroups; Kubernetes' own controllers aren't. */}}
{{- define "signalbox.unlisted" -}}
{{- printf "!(request.userInfo.username in %s) && !(has(request.userInfo.groups) && request.userInfo.groups.exists(g, g in %s))" (toJson .Values.policies.exemptUsers | replace "\"" "'") (toJson .Values.policies.exemptGroups | replace "\"" "'") }}
{{- end }}

{{/* CEL: whoever asks is MultiKueue in another cluster: a ServiceAccount of Kueue's namespace, or one of multiKueue.workerSubjects. */}}
{{- define "signalbox.dispatchers" -}}
{{- $users := list }}
{{- $groups := list (printf "system:serviceaccounts:%s" .Values.kueue.namespace) }}
{{- range .Values.multiKueue.workerSubjects }}
{{- if eq .kind "ServiceAccount" }}{{ $users = append $users (printf "system:serviceaccount:%s:%s" .namespace .name) }}
{{- else if eq .kind "Group" }}{{ $groups = append $groups .name }}
{{- else }}{{ $users = append $users .name }}
{{- end }}
{{- end }}
{{- printf "(request.userInfo.username in %s || has(request.userInfo.groups) && request.userInfo.groups.exists(g, g in %s))" (toJson $users | replace "\"" "'") (toJson $groups | replace "\"" "'") }}
{{- end }}

{{/* The namespaces that Kueue manages. The default stands here, because Helm would merge a map of the values into it. */}}
{{- define "signalbox.namespaces" -}}
{{- if kindIs "invalid" .Values.kueue.managedJobsNamespaceSelector -}}
matchExpressions:
- {key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, {{ .Values.kueue.namespace | quote }}]}
{{- else -}}
{{ toYaml .Values.kueue.managedJobsNamespaceSelector }}
{{- end }}
{{- end }}

{{/* Whether who used what is recorded: "true" or nothing. */}}
{{- define "signalbox.usage" -}}
{{- if ((.Values.config).usage).enabled }}true{{ end }}
{{- end }}

{{/* Whether TrainJobs may grow. */}}
{{- define "signalbox.grows" -}}
{{- ((.Values.config | default dict).grow | default dict).enabled | default false }}
{{- end }}

{{/* The configuration file: what the values make of it, and .Values.config over it. */}}
{{- define "signalbox.config" -}}
{{- $config := dict
  "apiVersion" "config.signalbox.dev/v1alpha1"
  "kind" "Configuration"
  "health" (dict "bindAddress" ":8081")
  "metrics" (dict "bindAddress" (ternary (printf ":%d" (int .Values.metrics.port)) "0" (ne (int .Values.metrics.port) 0)) "secure" .Values.metrics.secure)
  "webhook" (dict "port" (int .Values.webhook.port) "certDir" "/etc/signalbox/certs")
  "leaderElection" (dict "enabled" true "namespace" .Release.Namespace)
  "trainer" (dict
    "enabled" .Values.trainer.enabled
    "progress" (dict "enabled" .Values.trainer.progress.enabled "port" 10443 "service" (include "signalbox.webhookService" .) "secret" (include "signalbox.secret" .))
    "gangScheduling" (dict "mode" .Values.trainer.gangScheduling.mode "policy" .Values.trainer.gangScheduling.policy))
  "kueue" (dict
    "configMap" (dict "namespace" .Values.kueue.namespace "name" .Values.kueue.configMap)
    "identities" (list (printf "system:serviceaccount:%s:%s" .Values.kueue.namespace .Values.kueue.serviceAccount))
    "manageJobsWithoutQueueName" .Values.kueue.manageJobsWithoutQueueName
    "managedJobsNamespaceSelector" (include "signalbox.namespaces" . | fromYaml)
    "featureGates" .Values.kueue.featureGates) }}
{{- if not (kindIs "invalid" .Values.kueue.waitForPodsReady) }}
{{- $_ := set $config.kueue "waitForPodsReady" .Values.kueue.waitForPodsReady }}
{{- end }}
{{- with .Values.webhook.clientCABundle }}
{{- $_ := set $config.webhook "clientCABundle" . }}
{{- end }}
{{- if eq .Values.certificates.source "internal" }}
{{- $service := printf "%s.%s.svc" (include "signalbox.webhookService" .) .Release.Namespace }}
{{- $names := list $service (printf "%s.cluster.local" $service) }}
{{- if .Values.webhook.url }}{{ $names = prepend $names (urlParse .Values.webhook.url).hostname }}{{ end }}
{{- $configurations := list }}
{{- range splitList " " (include "signalbox.roles" .) }}{{ $configurations = append $configurations (printf "%s-%s" (include "signalbox.fullname" $) .) }}{{ end }}
{{- $_ := set $config.webhook "certificates" (dict
  "secret" (dict "namespace" .Release.Namespace "name" (include "signalbox.secret" .))
  "dnsNames" $names
  "webhookConfigurations" $configurations) }}
{{- end }}
{{- $more := .Values.config | default dict }}
{{- range $key, $_ := $more }}
{{- if not (has $key (list "concurrency" "clientConnection" "limits" "preemption" "grow" "nodes" "usage" "kueue" "pprof")) }}
{{- fail (printf "\n\nconfig.%s: the chart makes this field of its other values; set those. config takes concurrency, clientConnection, limits, preemption, grow, nodes, usage, pprof, and of kueue labelKeysToCopy, afterDeactivated, ownerKinds and ownerIdentities." $key) }}
{{- end }}
{{- end }}
{{- range $key, $_ := $more.kueue }}
{{- if not (has $key (list "labelKeysToCopy" "afterDeactivated" "ownerKinds" "ownerIdentities")) }}
{{- fail (printf "\n\nconfig.kueue.%s: the chart makes this field of kueue.%s; set that. config.kueue takes labelKeysToCopy, afterDeactivated, ownerKinds and ownerIdentities." $key $key) }}
{{- end }}
{{- end }}
{{- if eq (include "signalbox.grows" .) "true" }}
{{- if not (or .Values.policies.enabled $more.grow.policy) }}
{{- fail "\n\nconfig.grow.enabled needs policies.enabled: one of the policies keeps TrainJobs that grow from preempting others. Without the chart's policies, install it yourself, and name it in config.grow.policy." }}
{{- end }}
{{- $_ := set $config "grow" (dict "policy" (printf "%s-grow" (include "signalbox.fullname" .))) }}
{{- end }}
{{- mergeOverwrite $config (deepCopy $more) | toYaml }}
{{- end }}
