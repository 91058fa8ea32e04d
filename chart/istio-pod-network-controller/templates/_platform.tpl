{{- /* What the nodes are, in lower case. */ -}}
{{- define "agent.platform" -}}{{ lower .Values.kubernetesDistribution }}{{- end -}}

{{- define "agent.openshift" -}}
{{- if eq (include "agent.platform" .) "openshift" -}}true{{- end -}}
{{- end -}}

{{- /*
Where the platforms keep what the agent needs, and under which SELinux type it reaches it. What one leaves out is as on kubernetes. The sources are beside
kubernetesDistribution in values.yaml.
*/ -}}
{{- define "agent.platforms" -}}
kubernetes: {bin: /opt/cni/bin, conf: /etc/cni/net.d, endpoint: "", exclude: [], kubelet: /var/lib/kubelet, runtime: auto, selinux: {}}
openshift: {bin: /var/lib/cni/bin, conf: /etc/kubernetes/cni/net.d, exclude: ["openshift-*"], runtime: crio, selinux: {type: spc_t}}
gke: {bin: /home/kubernetes/bin, runtime: containerd}
eks: {runtime: containerd}
aks: {runtime: containerd}
k3s:
  bin: /var/lib/rancher/k3s/data/cni
  conf: /var/lib/rancher/k3s/agent/etc/cni/net.d
  endpoint: &k3s unix:///run/k3s/containerd/containerd.sock
  runtime: containerd
rke2: {endpoint: *k3s, runtime: containerd}
microk8s:
  bin: /var/snap/microk8s/current/opt/cni/bin
  conf: /var/snap/microk8s/current/args/cni-network
  endpoint: unix:///var/snap/microk8s/common/run/containerd.sock
  kubelet: /var/snap/microk8s/common/var/lib/kubelet
  runtime: containerd
kind: {runtime: containerd}
minikube: {}
bottlerocket: {runtime: containerd, selinux: {type: control_t}}
talos: {runtime: containerd}
{{- end -}}

{{- /* The platform's, as JSON. Values override them. */ -}}
{{- define "agent.node" -}}
{{- $platforms := include "agent.platforms" . | fromYaml -}}
{{- $v := .Values -}}
{{- $node := merge (dict) (get $platforms (include "agent.platform" .)) (get $platforms "kubernetes") -}}
{{- $asked := $v.runtime.name | default "auto" -}}
{{- $runtime := ternary $node.runtime $asked (eq $asked "auto") -}}
{{- /* The platform's socket is that of its own runtime. */ -}}
{{- $endpoint := ternary $node.endpoint "" (or (eq $asked "auto") (eq $asked $node.runtime)) -}}
{{- dict "bin" ($v.hooks.cni.binDir | default $node.bin) "conf" ($v.hooks.cni.confDir | default $node.conf) "endpoint" ($v.runtime.endpoint | default $endpoint)
  "exclude" ($v.hooks.cni.excludeNamespaces | default $node.exclude) "kubelet" ($v.pods.kubeletDir | default $node.kubelet | clean) "runtime" $runtime "selinux" $node.selinux | toJson -}}
{{- end -}}

{{- /* How many pods of the priority class a quota lets into the namespace; nothing if there is no quota: auto asks the platform. */ -}}
{{- define "agent.quota" -}}
{{- $asked := toString .Values.agent.priorityQuota -}}
{{- if and (eq $asked "auto") (eq (include "agent.platform" .) "gke") (ne .Release.Namespace "kube-system") -}}5k
{{- else if not (has $asked (list "auto" "false")) -}}{{ include "agent.quantity" .Values.agent.priorityQuota }}{{- end -}}
{{- end -}}
