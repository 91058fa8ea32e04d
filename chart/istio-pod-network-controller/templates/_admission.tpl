{{- /* Whether a policy is rendered: if it is not switched off, and the cluster has its kind. agent.checkCluster refuses a true where it has not. */ -}}
{{- define "agent.policy" -}}
{{- if and (ne (toString .asked) "false") (.root.Capabilities.APIVersions.Has (printf "admissionregistration.k8s.io/v1/%s" .kind)) -}}true{{- end -}}
{{- end -}}

{{- /*
What the API server adds to a policy's constraints, which are one field to server-side apply: left out, a second manager conflicts, and GitOps
engines see a difference for ever. The argument says whether the policy has a selector of namespaces of its own.
*/ -}}
{{- define "agent.matchDefaults" -}}
matchPolicy: Equivalent
objectSelector: {}
{{- if not . }}
namespaceSelector: {}
{{- end }}
{{- end -}}

{{- /* A policy's constraints: pods of namespaces that the agent may program, as they are created. */ -}}
{{- define "agent.newPods" -}}
{{ include "agent.matchDefaults" true }}
namespaceSelector:
  matchExpressions:
    - key: kubernetes.io/metadata.name
      operator: NotIn
      values: {{ append .Values.redirection.excludeNamespaces .Release.Namespace | uniq | toJson }}
resourceRules:
  - apiGroups: [""]
    apiVersions: [v1]
    operations: [CREATE]
    resources: [pods]
    scope: "*"
{{- end -}}

{{- /* The words for false, as a list of CEL. */ -}}
{{- define "agent.falseWords" -}}["0", "f", "F", "FALSE", "false", "False"]{{- end -}}

{{- /* A policy's match condition: the caller is the agent, of whatever node. */ -}}
{{- define "agent.isCaller" -}}
- name: the-agent
  expression: request.userInfo.username == "system:serviceaccount:{{ .Release.Namespace }}:{{ include "agent.account" . }}"
{{- end -}}

{{- /* A policy's variable: the node that the caller's token is bound to, or "". */ -}}
{{- define "agent.callersNode" -}}
- name: node
  expression: request.userInfo.?extra[?"authentication.kubernetes.io/node-name"][?0].orValue("")
{{- end -}}

{{- define "agent.waitName" -}}istio-pod-network-wait{{- end -}}

{{- /*
Any value as an expression of CEL. Every part of it is dyn(): CEL wants all values of a map to be of one type, and API servers of 1.36 answer
other forms with an internal error (kubernetes/kubernetes#142181).
*/ -}}
{{- define "agent.cel" -}}
{{- if kindIs "map" . -}}
dyn({{ "{" }}{{- $first := true }}{{- range $key, $value := . }}{{ ternary "" ", " $first }}{{ toJson $key }}: {{ include "agent.cel" $value }}{{ $first = false }}{{- end }}{{ "}" }})
{{- else if kindIs "slice" . -}}
dyn([{{- range $i, $value := . }}{{ ternary "" ", " (eq $i 0) }}{{ include "agent.cel" $value }}{{- end }}])
{{- else -}}
dyn({{ toJson . }})
{{- end -}}
{{- end -}}

{{- /*
The init container that waits for the rules. It keeps to Pod Security's level `restricted`. On OpenShift the namespace decides who it runs
as. Requests are limits, so that a pod of class Guaranteed stays one.
*/ -}}
{{- define "agent.waitContainer" -}}
name: {{ include "agent.waitName" . }}
image: {{ include "agent.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [/istio-pod-network-wait]
args: [--timeout=60s, --port=PORT, --mode=DEFAULT, --mode=$(MODE), --ipv6=DEFAULT, --ipv6=$(IPV6)]
env:
- name: MODE
  valueFrom: {fieldRef: {fieldPath: "metadata.annotations['sidecar.istio.io/interceptionMode']"}}
- name: IPV6
  valueFrom: {fieldRef: {fieldPath: "metadata.annotations['pod-network-controller.istio.io/ipv6']"}}
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  {{- if not (include "agent.openshift" .) }}
  runAsUser: 65532
  runAsGroup: 65532
  {{- end }}
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.admission.waitResources }}
resources: {{ toJson . }}
{{- end }}
{{- end -}}

{{- /* Runtime handlers are not known at admission; a runtime class mostly has the name of its handler. */ -}}
{{- define "agent.unsupportedClasses" -}}
{{- $patterns := list -}}
{{- range .Values.redirection.unsupportedRuntimeHandlers -}}
{{- $patterns = append $patterns (. | replace "." "[.]" | replace "*" ".*" | replace "?" ".") -}}
{{- end -}}
{{- with $patterns }}{{ printf "^(%s)$" (join "|" .) }}{{ end -}}
{{- end -}}
