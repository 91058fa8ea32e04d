{{- /*
What the agent sees of the node, each at the node's own path, because the runtime answers with such paths.
Sockets are mounted by their directory: a restarted runtime makes a new socket file, and a mounted file would stay the old one.
Docker's socket is in /var/run itself, which the agent must not get: only the file is mounted, and the agent must be restarted with Docker.
*/ -}}
{{- define "agent.allHostPaths" -}}
{{- $node := include "agent.node" . | fromJson -}}
{{- $socket := trimPrefix "unix://" $node.endpoint -}}
- {name: netns, path: /var/run/netns, type: DirectoryOrCreate}
{{- if and $socket (has (dir $socket) (list "/run" "/var/run")) }}
- {name: runtime, path: {{ $socket | quote }}, type: Socket}
{{- else if $socket }}
- {name: runtime, path: {{ dir $socket | quote }}, type: Directory, value: {{ printf "the runtime's socket %s" $socket | quote }}}
{{- else if eq $node.runtime "auto" }}
- {name: containerd, path: /run/containerd, type: DirectoryOrCreate, value: "the runtime's socket"}
- {name: crio, path: /var/run/crio, type: DirectoryOrCreate, value: "the runtime's socket"}
{{- else if eq $node.runtime "containerd" }}
- {name: containerd, path: /run/containerd, type: Directory, value: "the runtime's socket"}
{{- else if eq $node.runtime "crio" }}
- {name: crio, path: /var/run/crio, type: Directory, value: "the runtime's socket"}
{{- else }}
- {name: docker, path: /var/run/docker.sock, type: Socket}
{{- end }}
{{- if eq .Values.runtime.name "docker" }}
- {name: docker-netns, path: /var/run/docker/netns, type: DirectoryOrCreate}
{{- end }}
{{- if ne .Values.pods.from "api" }}
{{- /* The directory of the socket is the kubelet's to make, and kubelets before 1.37 have none: its parent is mounted. Where that is another one, agents start all the same. */}}
- {name: kubelet, path: {{ $node.kubelet | quote }}, type: {{ ternary "Directory" "''" (eq .Values.pods.from "kubelet") }}, value: {{ printf "pods.kubeletDir=%s" $node.kubelet | quote }}}
{{- end }}
- {name: kept, path: /run/istio-pod-network-controller/kept, type: DirectoryOrCreate, writable: true}
{{- if ne (include "agent.nri" .) "off" }}
- {name: nri, path: {{ dir .Values.hooks.nri.socket | quote }}, type: DirectoryOrCreate, value: {{ printf "hooks.nri.socket=%s" .Values.hooks.nri.socket | quote }}}
{{- end }}
{{- if eq (include "agent.cni" .) "install" }}
{{- /* Whoever can write to the directory of programs is root on the node: the agent sees it read-only, the init container puts the plugin there. */}}
- {name: cni-bin, path: {{ $node.bin | quote }}, type: DirectoryOrCreate, value: {{ printf "hooks.cni.binDir=%s" $node.bin | quote }}}
- {name: cni-conf, path: {{ $node.conf | quote }}, type: DirectoryOrCreate, writable: true, value: {{ printf "hooks.cni.confDir=%s" $node.conf | quote }}}
- {name: cni-socket, path: /var/run/istio-pod-network-controller, type: DirectoryOrCreate, writable: true, value: "the socket of the CNI plugin"}
{{- else if eq (include "agent.cni" .) "uninstall" }}
- {name: cni-conf, path: {{ $node.conf | quote }}, type: DirectoryOrCreate, writable: true, value: {{ printf "hooks.cni.confDir=%s" $node.conf | quote }}}
{{- end }}
{{- if .Values.proxies.enabled }}
{{- /* The proxies' files, in memory, and on disk which version of a profile works. Their logs are beside those of their pods' containers, where people and collectors look. */}}
- {name: sidecars, path: /run/istio-pod-network-controller/sidecars, type: DirectoryOrCreate, writable: true}
- {name: shared, path: {{ include "agent.sharedRoot" . }}, type: DirectoryOrCreate, writable: true}
- {name: profiles, path: /var/lib/istio-pod-network-controller/profiles, type: DirectoryOrCreate, writable: true}
- {name: pod-logs, path: /var/log/pods, type: Directory, writable: true}
{{- end }}
{{- end -}}

{{- /*
The same, each path once: a pod may mount nothing twice. A runtime may have its NRI socket beside its own. What the agent may write has a directory of its
own, or it could write the other's, too.
*/ -}}
{{- define "agent.hostPaths" -}}
{{- $kept := list -}}
{{- $at := dict -}}
{{- range include "agent.allHostPaths" . | fromYamlArray -}}
{{- $before := get $at .path | default dict -}}
{{- if not $before -}}
{{- $_ := set $at .path . -}}
{{- $kept = append $kept . -}}
{{- else if or .writable $before.writable -}}
{{- fail (printf "%s: the agent has the directory %s for %s, too, and may write to it for one of the two only; name another directory" (.value | default .name) .path ($before.value | default $before.name)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $kept -}}
{{- end -}}
