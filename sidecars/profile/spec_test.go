package profile

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars/istio"
)

const network = "network: {outboundPort: 15001, inboundPort: 15006}\n"

// specFrom reads what is written as spec.
func specFrom(t *testing.T, text string) (Spec, error) {
	t.Helper()
	var in v1alpha1.ProxyProfileSpec
	if err := yaml.UnmarshalStrict([]byte(text), &in); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return SpecOf(&in)
}

func TestSpecOf_kinds_sayTheSame(t *testing.T) {
	ports := v1alpha1.Network{OutboundPort: 15001, InboundPort: 15006}
	for name, c := range map[string]struct {
		text string
		want Spec
	}{
		"a container": {
			`container: {image: a, command: [b], args: [c], transparent: true, runAsUser: 7, runAsGroup: 8, restartPolicy: OnFailure, readiness: {tcpPort: 80, startSeconds: 5},
				liveness: {httpSocket: {name: s, path: /}, periodSeconds: 3}, update: {drainSeconds: 9, maxNodes: 3, handover: {haproxy: {}}}}`,
			Spec{
				Image: "a", Command: []string{"b"}, Args: []string{"c"}, Transparent: true, RunAsUser: 7, RunAsGroup: 8, RestartPolicy: "OnFailure",
				Readiness: Probe{TCPPort: 80, StartSeconds: 5}, Liveness: &Probe{HTTPGet: &HTTPGet{Socket: "s", Path: "/"}, PeriodSeconds: 3},
				Rollout: v1alpha1.Rollout{DrainSeconds: 9, MaxNodes: 3}, Handover: HandoverHAProxy, Network: ports,
			},
		},
		"containers side by side, whose ports are by slot": {
			`container: {image: a, readiness: {httpGet: {port: 80, path: /}}, liveness: {tcpPort: 81}, update: {handover: {reusePort: {stopSignal: QUIT}}}}`,
			Spec{
				Image: "a", Readiness: Probe{HTTPGet: &HTTPGet{Port: 80, Path: "/"}, SlotPorts: true}, Liveness: &Probe{TCPPort: 81, SlotPorts: true},
				Handover: HandoverReusePort, StopSignal: "QUIT", Network: ports,
			},
		},
		"an Envoy": {
			`container: {image: a, args: [b], readiness: {httpGet: {port: 80, path: /}}, update: {handover: {envoyHotRestart: {onIncompatibleVersion: Replace}}}}`,
			Spec{
				Image: "a", Args: []string{"b"}, Readiness: Probe{HTTPGet: &HTTPGet{Port: 80, Path: "/"}}, Handover: HandoverEnvoy,
				HotRestart: &v1alpha1.EnvoyHotRestart{OnIncompatibleVersion: "Replace"}, Network: ports,
			},
		},
		"a container that nobody says more of": {
			`container: {image: a, readiness: {socket: b}}`, Spec{Image: "a", Readiness: Probe{Socket: "b"}, Handover: HandoverNone, Network: ports},
		},
		"Istio's": {
			`istio: {image: a, revision: b, namespace: c, env: [{name: d, value: e}], readiness: {startSeconds: 60}, update: {maxParallel: 2}}`,
			Spec{
				Image: "a", Istio: &istio.ControlPlane{Revision: "b", Namespace: "c"}, Env: []v1alpha1.EnvVar{{Name: "d", Value: "e"}}, Readiness: Probe{StartSeconds: 60},
				Rollout: v1alpha1.Rollout{MaxParallel: 2}, Handover: HandoverReusePort, Network: ports,
			},
		},
		"Istio's, one after the other": {
			`istio: {image: a, update: {handover: {none: {}}}}`, Spec{Image: "a", Istio: &istio.ControlPlane{}, Handover: HandoverNone, Network: ports},
		},
		"a shared one": {
			`shared: {check: [a], reloadSignal: HUP, runAsGroup: 7, files: [{name: b, template: c}]}`,
			Spec{
				Shared: &Reload{Check: []string{"a"}, ReloadSignal: "HUP"}, RunAsGroup: 7, Files: []v1alpha1.File{{Name: "b", Template: "c"}},
				Handover: HandoverNone, Network: ports,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := specFrom(t, network+c.text)
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Errorf("error %v, -want +got:\n%s", err, diff)
			}
		})
	}
}

// What the schema does not refuse is named with its value.
func TestSpecOf_contradictions_areNamed(t *testing.T) {
	beside := func(rest string) string {
		return network + "container: {image: a, update: {handover: {reusePort: {stopSignal: QUIT}}}, " + rest + "}"
	}
	asked := func(rest string) string {
		return network + "container: {image: a, readiness: {tcpPort: 80}, " + rest + "}"
	}
	for name, c := range map[string]struct{ text, says string }{
		"no kind, as objects of an earlier build": {network, "exactly one of container, istio and shared"},
		"two kinds":                                {network + "istio: {image: a}\ncontainer: {image: a, readiness: {tcpPort: 80}}", "exactly one of container, istio and shared"},
		"two handovers":                            {asked("args: [a], update: {handover: {none: {}, haproxy: {}}}"), "update.handover has more than one way"},
		"one port for both directions":             {"network: {outboundPort: 7, inboundPort: 7}\nistio: {image: a}", "outboundPort and inboundPort are both 7"},
		"a handover without arguments":             {asked("update: {handover: {haproxy: {}}}"), "set command or args"},
		"an Envoy without arguments":               {asked("update: {handover: {envoyHotRestart: {}}}"), "set command or args"},
		"an argument of the agent's":               {asked("args: [-c, x, --base-id, '3'], update: {handover: {envoyHotRestart: {}}}"), "the agent sets --base-id itself"},
		"the same in one word, in the command":     {asked("command: [envoy, --restart-epoch=0], update: {handover: {envoyHotRestart: {}}}"), "the agent sets --restart-epoch itself"},
		"the same of another proxy":                {asked("args: [--base-id, '3']"), ""},
		"a variable that is two things":            {asked("env: [{name: A, value: b, fieldPath: metadata.name}]"), `env "A": value and fieldPath exclude each other`},
		"a rotation of sockets":                    {asked("secrets: [{name: a, upgradeOnRotation: true, workloadAPI: {hostDirectory: /run/spire}}]"), `secret "a": upgradeOnRotation is for`},
		"a socket of all epochs":                   {beside("readiness: {socket: admin.sock}"), `readiness: with the handover reusePort the other proxy would answer at the socket "admin.sock"`},
		"a page of such a socket":                  {beside("readiness: {httpSocket: {name: admin.sock}}"), `socket "admin.sock"`},
		"a page of the epoch's socket":             {beside("readiness: {httpSocket: {name: 'admin-{epoch}.sock'}}"), ""},
		"the last port":                            {beside("readiness: {tcpPort: 65535}"), "at the port after 65535"},
		"life by a socket of all epochs":           {beside("readiness: {tcpPort: 80}, liveness: {httpSocket: {name: a}}"), `liveness: with the handover reusePort the other proxy would answer at the socket "a"`},
		"ports of all epochs, which are by slot":   {beside("readiness: {tcpPort: 80}, liveness: {httpGet: {port: 81}}"), ""},
		"a socket of all epochs, one at a time":    {network + "container: {image: a, readiness: {socket: a}}", ""},
		"Istio's beside each other, without ports": {network + "istio: {image: a}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			first, err := specFrom(t, c.text)
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
			for range 20 { // the elected agent and the others find the same
				if again, _ := specFrom(t, c.text); again.Hash() != first.Hash() {
					t.Fatal("read again it is another one")
				}
			}
		})
	}
}
