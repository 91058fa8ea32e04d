{{- /*
The agent's environment: the pod's facts, and how long a connection to the API server may be silent. client-go asks a silent connection for a
sign of life after 30 s, and waits for it for 15 s; until then an agent behind a broken connection knows no new pod.
*/ -}}
{{- define "agent.env" -}}
{{- $given := list -}}
{{- range .Values.agent.extraEnv -}}
{{- if has .name (list "NODE_NAME" "POD_NAMESPACE" "POD_NAME" "GOMEMLIMIT") }}{{ fail (printf "agent.extraEnv: %s: the chart sets it itself" .name) }}{{ end -}}
{{- $given = append $given .name -}}
{{- end -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {apiVersion: v1, fieldPath: spec.nodeName}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}
- name: POD_NAME
  valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.name}}
{{- if dig "limits" "memory" "" (.Values.agent.resources | default dict) }}
- name: GOMEMLIMIT
  valueFrom: {resourceFieldRef: {divisor: "0", resource: limits.memory}}
{{- end }}
{{- range list (list "HTTP2_READ_IDLE_TIMEOUT_SECONDS" "10") (list "HTTP2_PING_TIMEOUT_SECONDS" "5") }}
{{- if not (has (first .) $given) }}
- name: {{ first . }}
  value: {{ last . | quote }}
{{- end }}
{{- end }}
{{- with .Values.agent.extraEnv }}
{{ include "agent.asStored" . }}
{{- end }}
{{- end -}}

{{- /*
What the user gives of a pod, as the API server stores it: with its defaults of fields that are one to server-side apply, and without a false that it
leaves out. Otherwise a second manager conflicts, and GitOps engines see a difference for ever.
*/ -}}
{{- define "agent.asStored" -}}
{{- $copy := deepCopy . -}}
{{- include "agent.complete" $copy -}}
{{- toYaml $copy -}}
{{- end -}}

{{- /* Changes its argument. */ -}}
{{- define "agent.complete" -}}
{{- $defaults := dict "fieldRef" (dict "apiVersion" "v1") "resourceFieldRef" (dict "divisor" "0") "serviceAccountToken" (dict "expirationSeconds" 3600) -}}
{{- if kindIs "map" . -}}
{{- if and (hasKey . "readOnly") (not .readOnly) }}{{ $_ := unset . "readOnly" }}{{ end -}}
{{- range $key, $value := . -}}
{{- if and (kindIs "map" $value) (hasKey $defaults $key) }}{{ $_ := merge $value (get $defaults $key) }}{{ end -}}
{{- include "agent.complete" $value -}}
{{- end -}}
{{- else if kindIs "slice" . -}}
{{- range . }}{{ include "agent.complete" . }}{{ end -}}
{{- end -}}
{{- end -}}

{{- /* A number as the API server writes a quantity: 5000 is 5k. */ -}}
{{- define "agent.quantity" -}}
{{- $number := int64 . -}}
{{- $unit := "" -}}
{{- range list "k" "M" "G" -}}
{{- if eq (mod $number 1000) 0 }}{{ $number = div $number 1000 }}{{ $unit = . }}{{ end -}}
{{- end -}}
{{- print $number $unit -}}
{{- end -}}

{{- /* The types of volumes that the agent's pods have, as JSON: what OpenShift has to allow. */ -}}
{{- define "agent.volumeTypes" -}}
{{- $types := list "emptyDir" "hostPath" "projected" -}}
{{- if or (include "agent.sidecarSecrets" . | fromJsonArray) (include "agent.metricsCertDir" .) }}{{ $types = append $types "secret" }}{{ end -}}
{{- toJson $types -}}
{{- end -}}
