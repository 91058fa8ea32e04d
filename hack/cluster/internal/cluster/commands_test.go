package cluster

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"istio-pod-network-controller/hack/cluster/internal/config"
	"istio-pod-network-controller/hack/cluster/internal/layout"
	"istio-pod-network-controller/hack/cluster/internal/plan"
	"istio-pod-network-controller/hack/cluster/internal/space"
	"istio-pod-network-controller/hack/cluster/internal/state"
)

func TestDaemonsRunBuiltProgramsInTheirNamespaces(t *testing.T) {
	for runtime, program := range map[string]string{config.Containerd: "/programs/containerd", config.CRIO: "/own/crio"} {
		s := onContainerd()
		if s.Runtime = runtime; runtime == config.CRIO {
			s.RuntimePrograms = "/own"
		}
		all := commands(plan.Default(), testLayout(), s)
		for _, name := range []string{etcd, apiServer, controllerManager, scheduler} {
			check(t, "/programs/"+name, all[name], space.ControlPlane)
		}
		for _, name := range []string{kubelet, kubeProxy} {
			check(t, "/programs/"+name, all[name], space.Node)
		}
		check(t, program, all[runtime], space.Node)
		if len(all) != 7 {
			t.Errorf("%s: %d daemons, of which 7 were checked", runtime, len(all))
		}
	}
}

func check(t *testing.T, program string, c command, where space.Kinds) {
	t.Helper()
	if len(c.argv) == 0 || c.argv[0] != program || c.where != where {
		t.Errorf("%s is %+v", program, c)
	}
}

func onContainerd() *state.State {
	return &state.State{Programs: "/programs", Runtime: config.Containerd}
}

func TestFlagsNameBothFamilies(t *testing.T) {
	all := commands(plan.Default(), testLayout(), onContainerd())
	for name, flag := range map[string]string{
		apiServer:         "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112",
		controllerManager: "--cluster-cidr=10.244.0.0/16,fd00:10:244::/56",
		kubelet:           "--node-ip=172.30.0.11,fd00:172:30::11",
	} {
		if !slices.Contains(all[name].argv, flag) {
			t.Errorf("%s lacks %s", name, flag)
		}
	}
}

func TestEveryFileThatAFlagNamesIsMade(t *testing.T) {
	p, l := plan.Default(), testLayout()
	l.Run = t.TempDir()
	if err := makeCredentials(p, l); err != nil {
		t.Fatal(err)
	}
	nodeFiles, err := config.Node{Plan: p, Runtime: config.Containerd}.Files()
	if err != nil {
		t.Fatal(err)
	}
	// What prepareNode adds to the rendered files.
	nodeFiles["/etc/kubernetes/kubelet.yaml"] = ""
	for name, c := range commands(p, l, onContainerd()) {
		for _, flag := range c.argv[1:] {
			_, value, _ := strings.Cut(flag, "=")
			switch _, onNode := nodeFiles[value]; {
			case !strings.HasPrefix(value, "/"), strings.HasSuffix(flag, "dir="+value), onNode:
			case !exists(value):
				t.Errorf("%s: %s does not exist", name, flag)
			}
		}
	}
}

func TestRestoreSysctlsLeavesEqualValuesAlone(t *testing.T) {
	saved, err := readSysctls()
	if err != nil || len(saved) == 0 {
		t.Fatalf("read %v, %v", saved, err)
	}
	// Nothing differs, so nothing is written: an ordinary user may do it.
	if err := restoreSysctls(saved); err != nil {
		t.Error(err)
	}
}

func testLayout() layout.Layout {
	return layout.Layout{Source: "/source", Cache: "/cache", Run: filepath.Join("/", "run", "cluster")}
}
