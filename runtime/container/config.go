package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

// What a container of the kubelet's carries, too. The kubelet ends within seconds a container whose UID is not that of a pod it knows.
const (
	labelContainerName = "io.kubernetes.container.name"
	labelPodName       = "io.kubernetes.pod.name"
	labelPodNamespace  = "io.kubernetes.pod.namespace"
	labelPodUID        = "io.kubernetes.pod.uid"
)

// Our own labels.
const (
	labelSidecar = "pod-network-controller.istio.io/managed-proxy"
	labelProfile = "pod-network-controller.istio.io/profile"
	labelHash    = "pod-network-controller.istio.io/hash"
	labelSignal  = "pod-network-controller.istio.io/stop-signal"
	labelRestart = "pod-network-controller.istio.io/restart-proxy"
	labelHot     = "pod-network-controller.istio.io/hot-restart"
	labelImage   = "pod-network-controller.istio.io/image" // as the profile names it: CRI-O's lists do not say
	labelCall    = "pod-network-controller.istio.io/call"  // random: whose call has made the container
)

// cpuPeriod is the kernel's default period of CPU limits, in microseconds.
const cpuPeriod = 100_000

func labelsOf(l map[string]string) sidecar.Labels {
	return sidecar.Labels{
		PodUID: l[labelPodUID], PodNamespace: l[labelPodNamespace], PodName: l[labelPodName],
		Profile: l[labelProfile], Hash: l[labelHash], StopSignal: l[labelSignal], Restart: l[labelRestart],
		HotRestart: sidecar.ParseHotRestart(l[labelHot]),
	}
}

func labels(l sidecar.Labels, image string) map[string]string {
	out := map[string]string{
		labelContainerName: sidecar.ContainerName, labelPodUID: l.PodUID, labelPodNamespace: l.PodNamespace, labelPodName: l.PodName,
		labelSidecar: "true", labelProfile: l.Profile, labelHash: l.Hash, labelSignal: l.StopSignal, labelRestart: l.Restart,
		labelImage: image,
	}
	if l.HotRestart != nil {
		out[labelHot] = l.HotRestart.String()
	}
	return out
}

// annotations returns what the kubelet reads of containers that it finds.
func annotations(epoch uint32) map[string]string {
	return map[string]string{
		"io.kubernetes.container.hash":                     "0",
		"io.kubernetes.container.restartCount":             strconv.FormatUint(uint64(epoch), 10),
		"io.kubernetes.container.terminationMessagePath":   "/dev/termination-log",
		"io.kubernetes.container.terminationMessagePolicy": "File",
		"io.kubernetes.pod.terminationGracePeriod":         "0",
	}
}

// containerConfig returns what the runtime makes the container from. The proxy shares the sandbox's network and IPC namespaces, and has a
// PID namespace of its own whatever the pod asks for: otherwise the pod's containers could see it.
func containerConfig(spec sidecar.Spec, sandbox *criv1.PodSandboxConfig) *criv1.ContainerConfig {
	epoch := strconv.FormatUint(uint64(spec.Epoch), 10)
	return &criv1.ContainerConfig{
		Metadata: &criv1.ContainerMetadata{Name: sidecar.ContainerName, Attempt: spec.Epoch},
		Image:    &criv1.ImageSpec{Image: spec.Image, UserSpecifiedImage: spec.Image},
		Command:  spec.Command, Args: spec.Args, Envs: envs(spec.Env), Mounts: mounts(spec.Mounts),
		Labels: labels(spec.Labels, spec.Image), Annotations: annotations(spec.Epoch),
		LogPath:    path.Join(sidecar.ContainerName, epoch+".log"),
		StopSignal: criv1.Signal(criv1.Signal_value["SIGNAL_SIG"+spec.StopSignal]),
		Linux:      &criv1.LinuxContainerConfig{Resources: resources(spec.Resources), SecurityContext: securityContext(spec, sandbox)},
	}
}

func securityContext(spec sidecar.Spec, sandbox *criv1.PodSandboxConfig) *criv1.LinuxContainerSecurityContext {
	capabilities := &criv1.Capability{DropCapabilities: []string{"ALL"}}
	if spec.NetAdmin {
		// It reaches root only: no runtime keeps ambient capabilities.
		capabilities.AddCapabilities = []string{"NET_ADMIN"}
	}
	return &criv1.LinuxContainerSecurityContext{
		Capabilities: capabilities,
		RunAsUser:    &criv1.Int64Value{Value: spec.UID}, RunAsGroup: &criv1.Int64Value{Value: spec.GID},
		NoNewPrivs: true, ReadonlyRootfs: true,
		Seccomp: &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_RuntimeDefault},
		// The runtime refuses a container whose user namespace is not the sandbox's.
		NamespaceOptions: &criv1.NamespaceOption{
			Network: criv1.NamespaceMode_POD, Ipc: criv1.NamespaceMode_POD, Pid: criv1.NamespaceMode_CONTAINER,
			UsernsOptions: sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions(),
		},
		MaskedPaths: []string{
			"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi",
			"/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
		},
		ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
	}
}

func resources(r sidecar.Resources) *criv1.LinuxContainerResources {
	const minShares, sharesPerCPU, milli = 2, 1024, 1000
	out := &criv1.LinuxContainerResources{
		MemoryLimitInBytes: r.MemoryBytes, OomScoreAdj: r.OOMScoreAdj, CpuShares: max(minShares, r.ShareMilli*sharesPerCPU/milli),
	}
	if r.CPUMilli > 0 {
		out.CpuPeriod, out.CpuQuota = cpuPeriod, r.CPUMilli*cpuPeriod/milli
	}
	return out
}

func envs(pairs []string) []*criv1.KeyValue {
	out := make([]*criv1.KeyValue, 0, len(pairs))
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		out = append(out, &criv1.KeyValue{Key: name, Value: []byte(value)})
	}
	return out
}

func mounts(all []sidecar.Mount) []*criv1.Mount {
	out := make([]*criv1.Mount, 0, len(all))
	for _, m := range all {
		out = append(out, &criv1.Mount{
			HostPath: m.Host, ContainerPath: m.Container, Readonly: m.ReadOnly, Propagation: criv1.MountPropagation_PROPAGATION_PRIVATE,
			SelinuxRelabel: m.Relabel,
		})
	}
	return out
}

// sandboxConfig returns the configuration that the kubelet made the sandbox from: without the cgroup's parent the container would be outside
// the pod's limits. containerd repeats it in the verbose status; of CRI-O's sandboxes it is put together.
func sandboxConfig(ctx context.Context, client criv1.RuntimeServiceClient, logRoot string, spec sidecar.Spec) (*criv1.PodSandboxConfig, error) {
	resp, err := client.PodSandboxStatus(ctx, &criv1.PodSandboxStatusRequest{PodSandboxId: spec.Sandbox, Verbose: true})
	if err != nil {
		return nil, fmt.Errorf("read status of sandbox %s: %w", spec.Sandbox, gone(err))
	}
	s := resp.GetStatus()
	if s.GetState() != criv1.PodSandboxState_SANDBOX_READY {
		return nil, fmt.Errorf("sandbox %s does not run: %w", spec.Sandbox, sidecar.ErrGone)
	}
	if s.GetMetadata().GetUid() != spec.PodUID {
		return nil, fmt.Errorf("sandbox %s is of the pod with the UID %q, not %q: %w", spec.Sandbox, s.GetMetadata().GetUid(), spec.PodUID, sidecar.ErrGone)
	}
	config, err := configOf(s, logRoot, resp.GetInfo()["info"])
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", spec.Sandbox, err)
	}
	return config, nil
}

// sandboxInfo has what is needed of containerd's SandboxInfo and CRI-O's createSandboxInfo.
type sandboxInfo struct {
	Config      *criv1.PodSandboxConfig `json:"config"`
	RuntimeSpec struct {
		Linux struct {
			CgroupsPath string `json:"cgroupsPath"`
		} `json:"linux"`
	} `json:"runtimeSpec"`
}

func configOf(s *criv1.PodSandboxStatus, logRoot, text string) (*criv1.PodSandboxConfig, error) {
	var info sandboxInfo
	if err := json.Unmarshal([]byte(text), &info); err != nil {
		return nil, fmt.Errorf("decode verbose status: %w", err)
	}
	if info.Config.GetLinux().GetCgroupParent() != "" {
		return info.Config, nil
	}
	parent, err := cgroupParent(info.RuntimeSpec.Linux.CgroupsPath)
	if err != nil {
		return nil, err
	}
	m := s.GetMetadata()
	return &criv1.PodSandboxConfig{
		Metadata: m, Labels: s.GetLabels(), Annotations: s.GetAnnotations(),
		LogDirectory: filepath.Join(logRoot, m.GetNamespace()+"_"+m.GetName()+"_"+m.GetUid()),
		Linux: &criv1.LinuxPodSandboxConfig{
			CgroupParent:    parent,
			SecurityContext: &criv1.LinuxSandboxSecurityContext{NamespaceOptions: s.GetLinux().GetNamespaces().GetOptions()},
		},
	}, nil
}

// cgroupParent returns the parent of a sandbox's cgroup: of "/kubepods/pod1/ID" it is "/kubepods/pod1", and of systemd's form
// "kubepods-pod1.slice:crio:ID" it is "kubepods-pod1.slice".
func cgroupParent(cgroup string) (string, error) {
	if slice, _, ok := strings.Cut(cgroup, ":"); ok && slice != "" {
		return slice, nil
	}
	if parent := path.Dir(cgroup); path.IsAbs(cgroup) && parent != "/" {
		return parent, nil
	}
	return "", errors.New("the verbose status names no cgroup to put the container beside: " + strconv.Quote(cgroup))
}

// makeLogDirectory makes the directory of the container's log, which the runtime does not make.
func makeLogDirectory(logRoot string, sandbox *criv1.PodSandboxConfig, config *criv1.ContainerConfig) error {
	dir := sandbox.GetLogDirectory()
	if rel, err := filepath.Rel(logRoot, dir); err != nil || !filepath.IsLocal(rel) || slices.Contains(strings.Split(rel, "/"), "..") {
		return fmt.Errorf("the sandbox's log directory %q is not below %s", dir, logRoot)
	}
	if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(config.GetLogPath())), 0o755); err != nil { //nolint:gosec // as the kubelet does: collectors of logs read it
		return fmt.Errorf("make log directory: %w", err)
	}
	return nil
}

// onNode returns the node's number of a user or group of a pod.
func onNode(ranges []*criv1.IDMapping, id int64) (int64, error) {
	for _, r := range ranges {
		if nth := id - int64(r.GetContainerId()); nth >= 0 && nth < int64(r.GetLength()) {
			return int64(r.GetHostId()) + nth, nil
		}
	}
	return 0, fmt.Errorf("the pod's user namespace (hostUsers: false) has no user or group %d, as which the proxy runs: choose a profile with another one, or hostUsers: true", id)
}
