package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/test/kerneltest"
)

// realProxy is a program that listens with SO_REUSEPORT.
type realProxy struct {
	program      string
	args         []string
	file, config string
	signal       string
}

// realProxies returns programs that pass connections of two ports on to the pod's application.
func realProxies(t *testing.T) map[string]realProxy {
	t.Helper()
	kerneltest.ProgramPath(t, "nginx")
	stream, _ := filepath.Glob("/usr/lib/nginx/modules/ngx_stream_module.so")
	if len(stream) == 0 {
		kerneltest.SkipOrFail(t, "nginx has no module stream (libnginx-mod-stream)")
	}
	return map[string]realProxy{
		"nginx": {
			program: kerneltest.ProgramPath(t, "nginx"), args: []string{"-e", "stderr", "-c", "/etc/sidecar/nginx.conf"},
			file: "nginx.conf", signal: "QUIT", config: `daemon off; pid /run/sidecar/nginx-{{.Epoch}}.pid; worker_processes 1;
load_module ` + stream[0] + `;
events { worker_connections 1024; }
stream {
  server { listen 0.0.0.0:{{.Network.OutboundPort}} reuseport; proxy_pass 127.0.0.1:8080; }
  server { listen 0.0.0.0:{{.Network.InboundPort}} reuseport; proxy_pass 127.0.0.1:8080; }
}
http {
  client_body_temp_path /run/sidecar; proxy_temp_path /run/sidecar; fastcgi_temp_path /run/sidecar; uwsgi_temp_path /run/sidecar; scgi_temp_path /run/sidecar;
  access_log off;
  server { listen unix:{{.AdminSocket}}; location = /ready { return 200; } }
  server { listen 127.0.0.1:909{{.Slot}}; location = /metrics { stub_status; } }
}
`,
		},
		"haproxy": {
			program: kerneltest.ProgramPath(t, "haproxy"), args: []string{"-db", "-f", "/etc/sidecar/haproxy.cfg"}, file: "haproxy.cfg", signal: "USR1",
			config: `global
  nbthread 1
  maxconn 1000
defaults
  timeout connect 5s
  timeout client 1h
  timeout server 1h
frontend traffic
  mode tcp
  bind 0.0.0.0:{{.Network.OutboundPort}}
  bind 0.0.0.0:{{.Network.InboundPort}}
  default_backend application
backend application
  mode tcp
  server application 127.0.0.1:8080
frontend ready
  mode http
  bind unix@{{.AdminSocket}}
  http-request return status 200 if { path /ready }
`,
		},
	}
}

// breaks are ways in which a new version fails. None may cost a connection.
func breaks() []func(*profile.Spec) {
	return []func(*profile.Spec){
		func(s *profile.Spec) { s.Command = []string{deaf} },
		func(s *profile.Spec) { s.Files[0].Template = "no such directive;" },
		func(s *profile.Spec) { s.Command = []string{"/bin/false"} },
		func(s *profile.Spec) { s.Command = []string{"/bin/sh", "-c", "sleep 1000"} },
		func(s *profile.Spec) { s.Image = "missing" },
	}
}

// sharingNode is a node whose pods have proxies that listen side by side.
type sharingNode struct {
	*realNode
	good func() profile.Spec
}

func newSharingNode(t *testing.T, pods int, proxy realProxy) *sharingNode {
	t.Helper()
	good := func() profile.Spec {
		return profile.Spec{
			NamespaceSelector: &metav1.LabelSelector{}, Image: "v0", Command: []string{proxy.program}, Args: proxy.args,
			Handover: profile.HandoverReusePort, StopSignal: proxy.signal, RunAsUser: 1337, RunAsGroup: 1337,
			Readiness: profile.Probe{HTTPGet: &profile.HTTPGet{Socket: "admin-{epoch}.sock", Path: "/ready"}, StartSeconds: 20, PeriodSeconds: 10},
			Rollout:   v1alpha1.Rollout{DrainSeconds: 20, MaxParallel: int32(pods), PauseOnFailure: new(bool)}, // each pod tries each version
			Network:   v1alpha1.Network{OutboundPort: 15001, InboundPort: 15006},
			Files:     []v1alpha1.File{{Name: proxy.file, Template: proxy.config}},
		}
	}
	n := &sharingNode{newRealNode(t, pods, "edge", good()), good}
	for _, pod := range n.pods {
		go echoLines(kerneltest.ListenTCP(t, pod, kerneltest.Owner{}, false, "127.0.0.1:8080"))
	}
	return n
}

// change gives the profile a new version: the good one with another image name, and what else changes it.
func (n *sharingNode) change(m *sidecars.Manager, image string, changes ...func(*profile.Spec)) {
	n.edit(m, func(s *profile.Spec) {
		*s = n.good()
		s.Image = image
		for _, f := range changes {
			f(s)
		}
	})
}

// await waits until every pod's ManagedProxy is as want says.
func (n *sharingNode) await(t *testing.T, what string, want func(sidecars.Status) bool) {
	t.Helper()
	left := func() (out []string) {
		n.profiles.Lock()
		defer n.profiles.Unlock()
		for _, s := range n.sandboxes {
			if said := n.said[s.UID]; !want(said) {
				out = append(out, fmt.Sprintf("%s: %+v", s.Name, said))
			}
		}
		return out
	}
	eventually(t, what, func() bool { return len(left()) == 0 }, func() string { return strings.Join(left(), "\n") })
}

// serves wants a version to serve alone.
func (n *sharingNode) serves(t *testing.T, image string) {
	t.Helper()
	n.await(t, image+" serves", func(s sidecars.Status) bool { return s.Ready && s.Image == image })
	eventually(t, "nothing but "+image+" runs", func() bool {
		all := n.images()
		return len(all) == len(n.sandboxes) && !slices.ContainsFunc(all, func(one string) bool { return one != image })
	}, func() string { return fmt.Sprint(n.images()) })
}

// Proxies are upgraded side by side under load, with versions among them that fail: no connection is lost. REUSEPORT=full does it with 30 proxies
// and 20 upgrades.
func TestReusePort_upgrades_loseNoConnection(t *testing.T) {
	size := struct{ pods, upgrades, connections, held int }{pods: 3, upgrades: 3, connections: 500, held: 15}
	full := os.Getenv("REUSEPORT") == "full"
	if full {
		size.pods, size.upgrades, size.connections, size.held = 30, 20, 100_000, 500
	}
	q := asker{namespaces: namespaces(t)}
	if err := q.Move(t.Context(), podnet.Sandbox{NetNS: kerneltest.New(t).Path()}); err != nil {
		kerneltest.SkipOrFail(t, "%v", err)
	}
	for name, proxy := range realProxies(t) {
		t.Run(name, func(t *testing.T) {
			if !full {
				t.Parallel()
			}
			n := newSharingNode(t, size.pods, proxy)
			m, stop := n.agent(t)
			defer func() { stop() }()
			n.serves(t, "v0")
			l := n.startLoad()
			broken, serving := breaks(), "v0"
			for i := range size.upgrades {
				if i%4 != 1 {
					serving = fmt.Sprint("v", i+1)
					n.change(m, serving)
					n.serves(t, serving)
					continue
				}
				n.change(m, fmt.Sprint("broken", i), broken[i/4], func(s *profile.Spec) { s.Readiness.StartSeconds = 2 })
				n.await(t, "a version fails, and the old one serves", func(s sidecars.Status) bool {
					return s.Ready && s.Image == serving && s.Failure != ""
				})
				stop() // an agent that is killed while it tries leaves nothing that the next one cannot put right
				m, stop = n.agent(t)
			}
			l.end(t, size.connections, size.held)
		})
	}
}
