package profile

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/istio"
)

// compiled returns the usual profile, changed.
func compiled(t *testing.T, changes ...func(*Spec)) *Version {
	t.Helper()
	spec := usual()
	for _, change := range changes {
		change(&spec)
	}
	p, err := New("edge", spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// envoy has the proxies be Envoys.
func envoy(s *Spec) {
	s.Handover, s.Args = HandoverEnvoy, []string{"-c", "/etc/sidecar/envoy.yaml"}
	s.Files = []v1alpha1.File{{Name: "envoy.yaml", Template: "path: {{.AdminSocket}}", Syntax: syntaxYAML}}
}

// reusePort has the proxies listen side by side.
func reusePort(s *Spec) {
	s.Handover, s.StopSignal, s.Args = HandoverReusePort, "QUIT", []string{"-c", "/etc/sidecar/nginx.conf"}
	s.Readiness.TCPPort, s.Readiness.HTTPGet = 0, &HTTPGet{Socket: "admin-{epoch}.sock", Path: "/ready"}
	s.Files = []v1alpha1.File{{Name: "nginx.conf", Template: "listen unix:{{.AdminSocket}}; listen 127.0.0.1:909{{.Slot}};"}}
}

func TestSpec_envoy_hasHotRestartArguments(t *testing.T) {
	if most := compiled(t, envoy).MaxRunning(); most != 2 {
		t.Errorf("%d may run at once: the third one ends the first", most)
	}
	l := Instance{Version: compiled(t, envoy), Pod: thePod(), Epoch: 5, HotRestart: &sidecar.HotRestart{Line: 3, Epoch: 2, Version: "11.104"}}
	got := l.Spec(nil)
	want := strings.Fields("-c /etc/sidecar/envoy.yaml --restart-epoch 2 --socket-path /run/sidecar/hot --socket-mode 0600" +
		" --drain-time-s 30 --parent-shutdown-time-s 45")
	if diff := cmp.Diff(want, got.Args); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got.Labels.HotRestart == nil || got.Labels.HotRestart.String() != "3/2/11.104" || got.Labels.StopSignal != "" {
		t.Errorf("labels %+v", got.Labels)
	}
	files, err := l.Files()
	if want := map[string]string{"envoy.yaml": `path: "/run/sidecar/admin-5.sock"`}; err != nil || !cmp.Equal(files, want) {
		t.Errorf("%v, %v", files, err)
	}
}

func TestSpec_reusePort_hasSignalAndNoArguments(t *testing.T) {
	p := compiled(t, reusePort)
	from := uint32(2)
	l := Instance{Version: p, Pod: thePod(), Epoch: 5, From: &from}
	if got := l.Spec(nil); got.StopSignal != "QUIT" || !slices.Equal(got.Args, p.Spec.Args) {
		t.Errorf("signal %q, arguments %q", got.StopSignal, got.Args)
	}
	files, err := l.Files()
	if want := "listen unix:/run/sidecar/admin-5.sock; listen 127.0.0.1:9091;"; err != nil || files["nginx.conf"] != want {
		t.Errorf("%v, %v", files, err)
	}
}

func TestReadiness_epoch_hasItsOwnSocketAndPort(t *testing.T) {
	for name, c := range map[string]struct {
		readiness, want Probe
		ports           []uint16
	}{
		"a socket": {
			Probe{Socket: "admin-{epoch}.sock"}, Probe{Socket: "admin-7.sock"}, nil,
		},
		"a page of a socket": {
			Probe{HTTPGet: &HTTPGet{Socket: "admin-{epoch}.sock", Path: "/ready"}},
			Probe{HTTPGet: &HTTPGet{Socket: "admin-7.sock", Path: "/ready"}},
			nil,
		},
		"a port of a slot": {
			Probe{TCPPort: 15021, SlotPorts: true}, Probe{TCPPort: 15022, SlotPorts: true}, []uint16{15021, 15022},
		},
		"a page of a slot's port": {
			Probe{HTTPGet: &HTTPGet{Port: 15021}, SlotPorts: true},
			Probe{HTTPGet: &HTTPGet{Port: 15022}, SlotPorts: true},
			[]uint16{15021, 15022},
		},
		"a port that all share": {
			Probe{TCPPort: 15021}, Probe{TCPPort: 15021}, []uint16{15021},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := compiled(t, func(s *Spec) { s.Readiness = c.readiness })
			if diff := cmp.Diff(c.want, p.Readiness(7)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if diff := cmp.Diff(append([]uint16{15001, 15006}, c.ports...), p.Ports()); diff != "" {
				t.Errorf("ports: -want +got:\n%s", diff)
			}
			if even := p.Readiness(6); even.TCPPort != c.readiness.TCPPort {
				t.Errorf("of an even epoch: %+v", even)
			}
		})
	}
}

// A runtime gives a capability to root only. The proxy's group is then what the rules know it by.
func TestSpec_transparent_isRootWithNetAdmin(t *testing.T) {
	root := compiled(t, envoy, func(s *Spec) {
		s.Transparent, s.RunAsUser, s.RunAsGroup = true, 7000, 7001
	})
	if got := (Instance{Version: root, Pod: thePod()}).Spec(nil); !got.NetAdmin || got.UID != 0 || got.GID != 7001 {
		t.Errorf("user %d, group %d, NET_ADMIN %t", got.UID, got.GID, got.NetAdmin)
	}
	user := compiled(t, envoy, func(s *Spec) { s.RunAsUser, s.RunAsGroup = 7000, 7001 })
	if got := (Instance{Version: user, Pod: thePod()}).Spec(nil); got.NetAdmin || got.UID != 7000 || got.GID != 7001 {
		t.Errorf("user %d, group %d, NET_ADMIN %t", got.UID, got.GID, got.NetAdmin)
	}
}

// Slots have ports of their own for what cannot be shared: the profile names none of them, and all that both have.
func TestPorts_istio_areThoseOfBothSlots(t *testing.T) {
	p := compiled(t, reusePort, func(s *Spec) {
		s.Istio, s.StopSignal, s.Args, s.Files, s.Readiness.HTTPGet = &istio.ControlPlane{}, "", nil, nil, nil
	})
	if got := p.Ports(); !slices.Equal(got, []uint16{15001, 15006, 15021, 15090}) {
		t.Errorf("ports %v", got)
	}
	if got := p.Readiness(1); got.HTTPGet == nil || got.HTTPGet.Path != "/healthz/ready" {
		t.Errorf("it is asked %+v", got)
	}
}
