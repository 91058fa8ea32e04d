{{- /*
What the nodes are. kubernetesDistribution has the same names, capitalized. It wins over platform's default; any other platform contradicts it,
and the template cannot know which of the two is the mistake.
*/ -}}
{{- define "agent.platform" -}}
{{- $old := .Values.kubernetesDistribution | default "" | lower -}}
{{- $new := .Values.platform -}}
{{- if and $old (ne $new "kubernetes") (ne $new $old) -}}
{{- fail (printf "platform=%s and kubernetesDistribution=%s contradict each other: set one of them" $new .Values.kubernetesDistribution) -}}
{{- end -}}
{{- $old | default $new -}}
{{- end -}}

{{- define "agent.openshift" -}}
{{- if eq (include "agent.platform" .) "openshift" -}}true{{- end -}}
{{- end -}}

{{- /*
Where the platforms keep what the agent needs, and under which SELinux type it reaches it, as JSON. Values override them. The sources are
beside `platform` in values.yaml.
*/ -}}
{{- define "agent.node" -}}
{{- $k3s := "unix:///run/k3s/containerd/containerd.sock" -}}
{{- $usual := dict "bin" "/opt/cni/bin" "conf" "/etc/cni/net.d" "endpoint" "" "exclude" list "kubelet" "/var/lib/kubelet" "runtime" "auto" "selinux" dict -}}
{{- $platforms := dict
  "openshift" (dict "bin" "/var/lib/cni/bin" "conf" "/etc/kubernetes/cni/net.d" "exclude" (list "openshift-*") "runtime" "crio" "selinux" (dict "type" "spc_t"))
  "gke" (dict "bin" "/home/kubernetes/bin" "runtime" "containerd")
  "eks" (dict "runtime" "containerd")
  "aks" (dict "runtime" "containerd")
  "k3s" (dict "bin" "/var/lib/rancher/k3s/data/cni" "conf" "/var/lib/rancher/k3s/agent/etc/cni/net.d" "endpoint" $k3s "runtime" "containerd")
  "rke2" (dict "endpoint" $k3s "runtime" "containerd")
  "microk8s" (dict "bin" "/var/snap/microk8s/current/opt/cni/bin" "conf" "/var/snap/microk8s/current/args/cni-network"
    "endpoint" "unix:///var/snap/microk8s/common/run/containerd.sock" "kubelet" "/var/snap/microk8s/common/var/lib/kubelet" "runtime" "containerd")
  "kind" (dict "runtime" "containerd")
  "bottlerocket" (dict "runtime" "containerd" "selinux" (dict "type" "control_t"))
  "talos" (dict "runtime" "containerd")
-}}
{{- $v := .Values -}}
{{- $node := merge (dict) (get $platforms (include "agent.platform" .) | default dict) $usual -}}
{{- $asked := $v.containerRuntime | default "auto" -}}
{{- $runtime := ternary $node.runtime $asked (eq $asked "auto") -}}
{{- /* The platform's socket is that of its own runtime. */ -}}
{{- $endpoint := ternary $node.endpoint "" (or (eq $asked "auto") (eq $asked $node.runtime)) -}}
{{- dict "bin" ($v.cniBinDir | default $node.bin) "conf" ($v.cniConfDir | default $node.conf) "endpoint" ($v.runtimeEndpoint | default $endpoint)
  "exclude" ($v.cniExcludeNamespaces | default $node.exclude) "kubelet" ($v.kubeletDir | default $node.kubelet | clean) "runtime" $runtime "selinux" $node.selinux | toJson -}}
{{- end -}}

{{- /* cni: install in a directory that the runtime does not use has no effect: it is refused if that can be detected. */ -}}
{{- define "agent.checkCNI" -}}
{{- if eq (include "agent.cni" .) "install" -}}
{{- $is := include "agent.platform" . -}}
{{- $node := include "agent.node" . | fromJson -}}
{{- if and (eq $is "openshift") (or (eq $node.conf "/etc/cni/net.d") (eq $node.bin "/opt/cni/bin")) -}}
{{- fail (printf "cni=install with cniConfDir=%s and cniBinDir=%s: CRI-O of OpenShift reads /etc/kubernetes/cni/net.d and /var/lib/cni/bin; leave both values empty" $node.conf $node.bin) -}}
{{- end -}}
{{- $looks := "" -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" }}{{ $looks = "openshift" }}
{{- else if contains "+k3s" $version }}{{ $looks = "k3s" }}
{{- else if contains "-gke." $version }}{{ $looks = "gke" }}
{{- else if contains "/microk8s/" $node.endpoint }}{{ $looks = "microk8s" }}{{ end -}}
{{- if and $looks (eq $is "kubernetes") (not (and .Values.cniBinDir .Values.cniConfDir)) -}}
{{- fail (printf "cni=install with platform=kubernetes on what looks like %s, whose directories are others: set platform=%s, or cniBinDir and cniConfDir" $looks $looks) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Runtimes would wait for a plugin that never comes. */ -}}
{{- define "agent.checkRequiredPlugins" -}}
{{- if and .Values.admission.requiredPlugins (eq (include "agent.nri" .) "off") -}}
{{- fail "admission.requiredPlugins=true with nri=off: runtimes would refuse every pod that asks, since the agent does not connect to NRI; set nri=required, or requiredPlugins=false" -}}
{{- end -}}
{{- end -}}

{{- /* Whether a quota lets pods of the priority class into the namespace: auto asks the platform. */ -}}
{{- define "agent.quota" -}}
{{- $asked := toString .Values.resourceQuota.enabled -}}
{{- if or (eq $asked "true") (and (eq $asked "auto") (eq (include "agent.platform" .) "gke") (ne .Release.Namespace "kube-system")) -}}true{{- end -}}
{{- end -}}
