package container

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/sidecar"
)

// proxy is a container for the fake's sandbox.
func (f *fakeCRI) proxy() sidecar.Spec {
	m := f.sandbox.GetStatus().GetMetadata()
	return sidecar.Spec{
		Sandbox: f.sandbox.GetStatus().GetId(), Epoch: 2, Image: "localhost/haproxy:1", Command: []string{"haproxy"}, Args: []string{"-f", "x"},
		Labels: sidecar.Labels{PodUID: m.GetUid(), PodNamespace: m.GetNamespace(), PodName: m.GetName(), Profile: "edge", Hash: "h1", StopSignal: "USR1"},
		Env:    []string{"A=b=c"}, Mounts: []sidecar.Mount{{Host: "/run/x", Container: "/run/sidecar", Relabel: true}, {Host: "/run/y", Container: "/etc/sidecar", ReadOnly: true}},
		UID: 1337, GID: 1338, Resources: sidecar.Resources{MemoryBytes: 64 << 20, CPUMilli: 500, ShareMilli: 100, OOMScoreAdj: 970},
	}
}

func TestCreate_proxy_isApartFromApplication(t *testing.T) {
	for _, recorded := range []string{"containerd", "crio"} {
		t.Run(recorded, func(t *testing.T) {
			f, r := newFake(t, recorded)
			id, err := r.Create(t.Context(), f.proxy())
			if err != nil {
				t.Fatal(err)
			}
			made := f.made[id]
			for what, ok := range apart(f, made) {
				if !ok {
					t.Errorf("%s: not so in %v", what, made)
				}
			}
			if _, err := os.Stat(filepath.Join(made.GetSandboxConfig().GetLogDirectory(), sidecar.ContainerName)); err != nil {
				t.Errorf("the log's directory: %v", err)
			}
			checkListed(t, f, r, id)
		})
	}
}

// apart says what has to hold of a proxy's container.
func apart(f *fakeCRI, made *criv1.CreateContainerRequest) map[string]bool {
	config, sc := made.GetConfig(), made.GetConfig().GetLinux().GetSecurityContext()
	return map[string]bool{
		"no process of the pod sees it":           sc.GetNamespaceOptions().GetPid() == criv1.NamespaceMode_CONTAINER,
		"it is in the pod's network":              sc.GetNamespaceOptions().GetNetwork() == criv1.NamespaceMode_POD,
		"no capability":                           slices.Equal(sc.GetCapabilities().GetDropCapabilities(), []string{"ALL"}) && len(sc.GetCapabilities().GetAddCapabilities()) == 0,
		"no new privileges":                       sc.GetNoNewPrivs() && !sc.GetPrivileged(),
		"a root that it cannot change":            sc.GetReadonlyRootfs(),
		"seccomp":                                 sc.GetSeccomp().GetProfileType() == criv1.SecurityProfile_RuntimeDefault,
		"its user":                                sc.GetRunAsUser().GetValue() == 1337 && sc.GetRunAsGroup().GetValue() == 1338,
		"the pod's cgroup":                        strings.Contains(made.GetSandboxConfig().GetLinux().GetCgroupParent(), strings.ReplaceAll(f.proxy().PodUID, "-", "_")) || strings.Contains(made.GetSandboxConfig().GetLinux().GetCgroupParent(), f.proxy().PodUID),
		"a name of its own":                       config.GetMetadata().GetName() == sidecar.ContainerName && config.GetMetadata().GetAttempt() == 2,
		"the pod's UID, else the kubelet ends it": config.GetLabels()[labelPodUID] == f.proxy().PodUID,
		"the stop signal":                         config.GetStopSignal() == criv1.Signal_SIGNAL_SIGUSR1,
		"the environment":                         len(config.GetEnvs()) == 1 && config.GetEnvs()[0].GetKey() == "A" && string(config.GetEnvs()[0].GetValue()) == "b=c",
		"mounts that do not leak":                 !slices.ContainsFunc(config.GetMounts(), func(m *criv1.Mount) bool { return m.GetPropagation() != criv1.MountPropagation_PROPAGATION_PRIVATE }),
		"only what is the proxy's is relabelled":  config.GetMounts()[0].GetSelinuxRelabel() && !config.GetMounts()[1].GetSelinuxRelabel(),
		"limits":                                  config.GetLinux().GetResources().GetCpuQuota() == 50_000 && config.GetLinux().GetResources().GetMemoryLimitInBytes() == 64<<20 && config.GetLinux().GetResources().GetCpuShares() == 102 && config.GetLinux().GetResources().GetOomScoreAdj() == 970,
	}
}

// checkListed wants the runtime to give back what the proxy was made from.
func checkListed(t *testing.T, f *fakeCRI, r *Runtime, id string) {
	t.Helper()
	all, err := r.List(t.Context(), "")
	if err != nil || len(all) != 1 {
		t.Fatalf("listed %+v, error %v", all, err)
	}
	spec := f.proxy()
	want := sidecar.Container{
		ID: id, Sandbox: spec.Sandbox, Labels: spec.Labels, Epoch: 2, State: sidecar.Running, Image: spec.Image, Created: time.Unix(0, 7),
	}
	if all[0] != want {
		t.Errorf("listed %+v, want %+v", all[0], want)
	}
	for uid, want := range map[string]int{spec.PodUID: 1, "another": 0} {
		if all, err := r.List(t.Context(), uid); err != nil || len(all) != want || f.listed[labelPodUID] != uid {
			t.Errorf("of the pod %s: asked for %v, listed %+v, error %v; want %d", uid, f.listed, all, err, want)
		}
	}
}

func TestCreate_netAdmin_isOnlyCapability(t *testing.T) {
	f, r := newFake(t, "containerd")
	spec := f.proxy()
	spec.NetAdmin = true
	id, err := r.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	c := f.made[id].GetConfig().GetLinux().GetSecurityContext().GetCapabilities()
	if !slices.Equal(c.GetAddCapabilities(), []string{"NET_ADMIN"}) || !slices.Equal(c.GetDropCapabilities(), []string{"ALL"}) {
		t.Errorf("capabilities %v", c)
	}
}

func TestCreate_fails_leavesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fakeCRI, *sidecar.Spec)
		gone   bool
		says   string
	}{
		"the sandbox is gone":          {func(_ *fakeCRI, s *sidecar.Spec) { s.Sandbox = "other" }, true, "other"},
		"the sandbox has ended":        {func(f *fakeCRI, _ *sidecar.Spec) { f.sandbox.Status.State = criv1.PodSandboxState_SANDBOX_NOTREADY }, true, "does not run"},
		"the sandbox is another pod's": {func(_ *fakeCRI, s *sidecar.Spec) { s.PodUID = "u2" }, true, `not "u2"`},
		"it cannot be made": {func(f *fakeCRI, _ *sidecar.Spec) {
			f.errors["create"] = status.Error(codes.AlreadyExists, "name is reserved")
		}, false, "reserved"},
		"it cannot be started": {func(f *fakeCRI, _ *sidecar.Spec) { f.errors["start"] = errors.New("exec: no such file") }, false, "no such file"},
		"the logs are elsewhere": {func(f *fakeCRI, _ *sidecar.Spec) {
			f.sandbox.Info["info"] = `{"config":{"log_directory":"/etc","linux":{"cgroup_parent":"/kubepods/pod1"}}}`
		}, false, `"/etc" is not below`},
		"no cgroup is known": {func(f *fakeCRI, _ *sidecar.Spec) { f.sandbox.Info["info"] = `{}` }, false, "no cgroup"},
		"no information":     {func(f *fakeCRI, _ *sidecar.Spec) { f.sandbox.Info = nil }, false, "verbose status"},
	} {
		t.Run(name, func(t *testing.T) {
			f, r := newFake(t, "containerd")
			spec := f.proxy()
			c.change(f, &spec)
			_, err := r.Create(t.Context(), spec)
			if err == nil || errors.Is(err, sidecar.ErrGone) != c.gone || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v", err)
			}
			if len(f.states) != 0 {
				t.Errorf("containers are left: %v", f.states)
			}
		})
	}
}

func TestStop_containerMissing_isNoError(t *testing.T) {
	_, r := newFake(t, "containerd")
	if err := errors.Join(r.Stop(t.Context(), "c9", time.Second), r.Remove(t.Context(), "c9")); err != nil {
		t.Error(err)
	}
	if _, err := r.End(t.Context(), "c9"); !errors.Is(err, sidecar.ErrGone) {
		t.Errorf("how it ended: %v", err)
	}
	if err := r.Signal(t.Context(), "c9", unix.SIGUSR1); !errors.Is(err, sidecar.ErrGone) {
		t.Errorf("signal: %v", err)
	}
}

func TestStop_partOfSecond_isRoundedUp(t *testing.T) {
	f, r := newFake(t, "containerd")
	f.states["c0"] = criv1.ContainerState_CONTAINER_RUNNING
	for _, wait := range []time.Duration{0, time.Millisecond, time.Second, 1500 * time.Millisecond} {
		if err := r.Stop(t.Context(), "c0", wait); err != nil {
			t.Error(err)
		}
	}
	if want := []int64{0, 1, 1, 2}; !slices.Equal(f.stopped, want) {
		t.Errorf("stopped with %v seconds, want %v", f.stopped, want)
	}
	end, err := r.End(t.Context(), "c0")
	if want := (sidecar.End{ExitCode: 3, Reason: "Error", LogPath: "/logs/0.log"}); err != nil || end != want {
		t.Errorf("ended %+v, error %v", end, err)
	}
}

// A process that has the number of a container's process by accident gets no signal.
func TestSignal_otherProcess_isNotSignalled(t *testing.T) {
	for name, c := range map[string]struct {
		pids  func(own int) func() int
		state criv1.ContainerState
		sent  bool
	}{
		"its own":                   {func(own int) func() int { return func() int { return own } }, criv1.ContainerState_CONTAINER_RUNNING, true},
		"it has ended":              {func(own int) func() int { return func() int { return own } }, criv1.ContainerState_CONTAINER_EXITED, false},
		"none":                      {func(int) func() int { return func() int { return 0 } }, criv1.ContainerState_CONTAINER_RUNNING, false},
		"the node's first":          {func(int) func() int { return func() int { return 1 } }, criv1.ContainerState_CONTAINER_RUNNING, false},
		"another one than at first": {changing, criv1.ContainerState_CONTAINER_RUNNING, false},
	} {
		t.Run(name, func(t *testing.T) {
			f, r := newFake(t, "containerd")
			process := exec.CommandContext(t.Context(), "sleep", "100")
			if err := process.Start(); err != nil {
				t.Fatal(err)
			}
			f.states["c0"], f.pids = c.state, c.pids(process.Process.Pid)
			err := r.Signal(t.Context(), "c0", unix.SIGUSR1)
			if c.sent != (err == nil) || !c.sent && !errors.Is(err, sidecar.ErrGone) {
				t.Errorf("error %v", err)
			}
			if !c.sent {
				_ = process.Process.Kill()
			}
			_ = process.Wait()
			if how := process.ProcessState.String(); c.sent && !strings.Contains(how, "user defined signal 1") {
				t.Errorf("the process ended by %q", how)
			}
		})
	}
}

// changing returns another number with each call.
func changing(own int) func() int {
	asked := 0
	return func() int { asked++; return own + 1 - asked%2 }
}

func TestPull_severalCredentials_triesUntilAccepted(t *testing.T) {
	credentials := []Auth{{Username: "a", Password: "x"}, {Username: "b", Password: "y"}}
	for name, c := range map[string]struct {
		accepts string
		with    []Auth
		fails   error
		pulls   int
		ok      bool
	}{
		"without":             {"", nil, nil, 1, true},
		"the second":          {"b", credentials, nil, 2, true},
		"none is right":       {"c", credentials, nil, 2, false},
		"the runtime is away": {"b", credentials, status.Error(codes.Unavailable, "away"), 1, false},
	} {
		f, r := newFake(t, "containerd")
		f.accepts, f.errors["pull"] = c.accepts, c.fails
		err := r.Pull(t.Context(), "registry.example/proxy:1", c.with)
		if c.ok != (err == nil) || err != nil && !errors.Is(err, ErrNotPulled) || len(f.pulls) != c.pulls {
			t.Errorf("%s: error %v after %d pulls", name, err, len(f.pulls))
		}
	}
	_, r := newFake(t, "containerd")
	for image, want := range map[string]bool{"localhost/there:1": true, "localhost/other:1": false} {
		if id, err := r.ImageID(context.WithoutCancel(t.Context()), image); err != nil || id != "" != want {
			t.Errorf("%s: %q, error %v", image, id, err)
		}
	}
}

func TestWait_processEnds_returnsAtOnce(t *testing.T) {
	f, r := newFake(t, "containerd")
	process := exec.CommandContext(t.Context(), "sleep", "100")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	f.made["c0"], f.states["c0"] = &criv1.CreateContainerRequest{}, criv1.ContainerState_CONTAINER_RUNNING
	f.pids = func() int { return process.Process.Pid }
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.Wait(short, "c0"); err == nil {
		t.Error("it has ended, says the wait, and it runs")
	}
	ended := make(chan error)
	go func() { ended <- r.Wait(t.Context(), "c0") }()
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	_ = process.Wait()
	if err := r.Wait(t.Context(), "c0"); err != nil { // the runtime still lists it as running
		t.Errorf("of a process that has ended: %v", err)
	}
	if err := r.Wait(t.Context(), "c9"); !errors.Is(err, sidecar.ErrGone) {
		t.Errorf("of no container: %v", err)
	}
}

func TestReady_sandboxes_onlyRunningIs(t *testing.T) {
	f, r := newFake(t, "containerd")
	id := f.sandbox.GetStatus().GetId()
	for name, c := range map[string]struct {
		id    string
		state criv1.PodSandboxState
		want  bool
	}{
		"it runs": {id, criv1.PodSandboxState_SANDBOX_READY, true}, "it has ended": {id, criv1.PodSandboxState_SANDBOX_NOTREADY, false},
		"it is gone": {"other", criv1.PodSandboxState_SANDBOX_READY, false},
	} {
		f.sandbox.Status.State = c.state
		if got, err := r.Ready(t.Context(), c.id); got != c.want || err != nil {
			t.Errorf("%s: %t, error %v", name, got, err)
		}
		if _, err := r.Addresses(t.Context(), c.id); errors.Is(err, sidecar.ErrGone) == c.want {
			t.Errorf("%s: addresses: error %v", name, err)
		}
	}
}

func TestAddresses_sandboxes_allFamiliesAreThere(t *testing.T) {
	for name, c := range map[string]struct {
		network *criv1.PodSandboxNetworkStatus
		want    []string
	}{
		"both families":      {&criv1.PodSandboxNetworkStatus{Ip: "10.0.0.1", AdditionalIps: []*criv1.PodIP{{Ip: "fd00::1"}}}, []string{"10.0.0.1", "fd00::1"}},
		"one":                {&criv1.PodSandboxNetworkStatus{Ip: "fd00::1"}, []string{"fd00::1"}},
		"the host's network": {&criv1.PodSandboxNetworkStatus{}, nil},
		"no word of it":      {nil, nil},
	} {
		f, r := newFake(t, "containerd")
		f.sandbox.Status.Network = c.network
		if got, err := r.Addresses(t.Context(), f.sandbox.GetStatus().GetId()); !slices.Equal(got, c.want) || err != nil {
			t.Errorf("%s: %q, error %v", name, got, err)
		}
	}
}
