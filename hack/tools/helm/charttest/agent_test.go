package charttest

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chartutil"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

func valuesMap(t *testing.T, values string) map[string]any {
	t.Helper()
	parsed, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// Whatever the values are, the agent's pod is made of valid objects and asks for no more than it needs.
func TestEveryValueSet(t *testing.T) {
	for name, values := range cases(t) {
		t.Run(name, func(t *testing.T) {
			for _, doc := range documents(t, values) {
				decode(t, doc)
			}
			pod := daemonSet(t, values).Spec.Template.Spec
			want := 0
			if cni := valuesMap(t, values)["cni"]; cni != nil && cni != "off" {
				want = 1
			}
			if len(pod.Containers) != 1 || len(pod.InitContainers) != want {
				t.Fatalf("%d containers and %d init containers, want 1 and %d", len(pod.Containers), len(pod.InitContainers), want)
			}
			checkSecurity(t, pod, values)
			checkMounts(t, pod)
			checkUpdates(t, daemonSet(t, values).Spec)
		})
	}
}

func checkSecurity(t *testing.T, pod corev1.PodSpec, values string) {
	t.Helper()
	wantAdd, wantPID := []corev1.Capability{"SYS_ADMIN", "NET_ADMIN"}, false
	if valuesMap(t, values)["backend"] == "iptables" {
		wantAdd = append(wantAdd, "NET_RAW")
	}
	if valuesMap(t, values)["processFallback"] == true {
		wantAdd, wantPID = append(wantAdd, "SYS_PTRACE"), true
	}
	if sidecarsOn(t, values) {
		wantAdd, wantPID = append(wantAdd, "KILL", "CHOWN", "DAC_OVERRIDE"), true
	}
	security := pod.Containers[0].SecurityContext
	wantCapabilities := &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: wantAdd}
	if diff := cmp.Diff(wantCapabilities, security.Capabilities); diff != "" {
		t.Errorf("capabilities (-want +got):\n%s", diff)
	}
	if *security.Privileged || *security.AllowPrivilegeEscalation || !*security.ReadOnlyRootFilesystem {
		t.Errorf("privileged, allows escalation or has a writable root: %+v", security)
	}
	if security.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("seccomp profile %s, want the runtime's", security.SeccompProfile.Type)
	}
	if pod.HostPID != wantPID || pod.HostIPC || !pod.HostNetwork {
		t.Errorf("hostPID %t, hostIPC %t, hostNetwork %t; want %t, false, true", pod.HostPID, pod.HostIPC, pod.HostNetwork, wantPID)
	}
}

func checkMounts(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	volumes := make(map[string]string, len(pod.Volumes)) // paths on the node
	for _, volume := range pod.Volumes {
		switch {
		case volume.EmptyDir != nil, volume.ConfigMap != nil: // the pod's own, or the user's: no part of the node
		case volume.Secret != nil:
			volumes[volume.Name] = sidecarSecrets + "/" + volume.Secret.SecretName
		default:
			volumes[volume.Name] = volume.HostPath.Path
		}
	}
	for _, c := range pod.InitContainers { // cni_test.go says what they may do
		for _, mount := range c.VolumeMounts {
			if !slices.ContainsFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == mount.Name }) {
				delete(volumes, mount.Name)
			}
		}
	}
	for _, mount := range pod.Containers[0].VolumeMounts {
		if path, ofTheNode := volumes[mount.Name]; ofTheNode {
			checkMount(t, mount, path)
		}
		delete(volumes, mount.Name)
	}
	if len(volumes) != 0 {
		t.Errorf("volumes that nothing mounts: %v", volumes)
	}
}

// checkMount checks what the agent sees of a path of the node.
func checkMount(t *testing.T, mount corev1.VolumeMount, path string) {
	t.Helper()
	if path != mount.MountPath {
		t.Errorf("%s: the node's %q is mounted at %q, want the same path", mount.Name, path, mount.MountPath)
	}
	tooWide := map[string]bool{"/": true, "/run": true, "/var/run": true, "/var": true, "/proc": true}
	writable := slices.Contains([]string{"cni-conf", "cni-socket", "sidecars", "shared", "pod-logs"}, mount.Name)
	if mount.ReadOnly == writable || tooWide[mount.MountPath] {
		t.Errorf("%s: read-only %t, or too wide", mount.MountPath, mount.ReadOnly)
	}
	// Without propagation a namespace made later is an empty file, and a container's unmounted root stays in use.
	socket, secret := strings.HasSuffix(mount.MountPath, ".sock"), strings.HasPrefix(mount.MountPath, sidecarSecrets)
	if !socket && !secret && !writable && (mount.MountPropagation == nil || *mount.MountPropagation != corev1.MountPropagationHostToContainer) {
		t.Errorf("%s: mounts of the node do not reach the agent", mount.MountPath)
	}
}

// OpenShift's type is not among those of Kubernetes: its fields without a default are compared here.
func TestSecurityContextConstraintsAdmitThePod(t *testing.T) {
	for name, tc := range map[string]struct {
		in                string
		wantCapabilities  []any
		wantHostPID, want bool
	}{
		"on Kubernetes there are none":     {in: "platform: kubernetes"},
		"what the agent needs":             {in: "platform: openshift", wantCapabilities: []any{"SYS_ADMIN", "NET_ADMIN"}, want: true},
		"the fallback to processes' files": {in: "{platform: openshift, processFallback: true}", wantCapabilities: []any{"SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE"}, wantHostPID: true, want: true},
		"proxies of the agent": {
			in:               "{platform: openshift, sidecars: {enabled: true, untestedPlatform: true}}",
			wantCapabilities: []any{"SYS_ADMIN", "NET_ADMIN", "KILL", "CHOWN", "DAC_OVERRIDE"}, wantHostPID: true, want: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			scc := constraints(t, tc.in)
			if (scc != nil) != tc.want {
				t.Fatalf("SecurityContextConstraints rendered: %t, want %t", scc != nil, tc.want)
			}
			if scc == nil {
				return
			}
			want := map[string]any{
				"allowHostDirVolumePlugin": true, "allowHostIPC": false, "allowHostNetwork": true, "allowHostPID": tc.wantHostPID,
				"allowHostPorts": false, "allowPrivilegedContainer": false, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
				"allowedCapabilities": tc.wantCapabilities, "requiredDropCapabilities": []any{}, "volumes": []any{"emptyDir", "hostPath", "projected"},
			}
			for key, value := range want {
				if diff := cmp.Diff(value, scc[key]); diff != "" {
					t.Errorf("%s (-want +got):\n%s", key, diff)
				}
			}
			security := daemonSet(t, tc.in).Spec.Template.Spec.Containers[0].SecurityContext
			if security.SELinuxOptions == nil || security.SELinuxOptions.Type != "spc_t" {
				t.Errorf("SELinux options %+v, want type spc_t", security.SELinuxOptions)
			}
		})
	}
}

func constraints(t *testing.T, values string) map[string]any {
	t.Helper()
	for _, doc := range documents(t, values) {
		var object map[string]any
		if err := yaml.UnmarshalStrict([]byte(doc), &object); err != nil {
			t.Fatal(err)
		}
		if object["kind"] == "SecurityContextConstraints" {
			return object
		}
	}
	return nil
}
