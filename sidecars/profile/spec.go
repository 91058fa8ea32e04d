package profile

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars/istio"
)

// Spec is what a ProxyProfile says, the same for all kinds of proxies. Nodes remember it on their disks, and its JSON is what the hash is computed of.
type Spec struct {
	NamespaceSelector *metav1.LabelSelector      `json:"namespaceSelector,omitempty"`
	Shared            *Reload                    `json:"shared,omitempty"`
	Istio             *istio.ControlPlane        `json:"istio,omitempty"`
	Image             string                     `json:"image,omitempty"`
	ImagePullSecrets  []v1alpha1.SecretReference `json:"imagePullSecrets,omitempty"`
	Command           []string                   `json:"command,omitempty"`
	Args              []string                   `json:"args,omitempty"`
	Env               []v1alpha1.EnvVar          `json:"env,omitempty"`
	Files             []v1alpha1.File            `json:"files,omitempty"`
	Secrets           []v1alpha1.SecretSource    `json:"secrets,omitempty"`
	RunAsUser         int64                      `json:"runAsUser,omitempty"`
	RunAsGroup        int64                      `json:"runAsGroup,omitempty"`
	Resources         v1alpha1.Resources         `json:"resources"`
	Readiness         Probe                      `json:"readiness"`
	Liveness          *Probe                     `json:"liveness,omitempty"`
	Handover          Handover                   `json:"handover,omitempty"`
	StopSignal        string                     `json:"stopSignal,omitempty"` // of reuse-port
	HotRestart        *v1alpha1.EnvoyHotRestart  `json:"hotRestart,omitempty"`
	Rollout           v1alpha1.Rollout           `json:"rollout"`
	RestartPolicy     string                     `json:"restartPolicy,omitempty"`
	Network           v1alpha1.Network           `json:"network"`
	Transparent       bool                       `json:"transparent,omitempty"`
}

// Handover is a way to replace a running proxy.
type Handover string

// The handovers.
const (
	HandoverNone      Handover = "none"
	HandoverHAProxy   Handover = "haproxy"
	HandoverEnvoy     Handover = "envoy-hot-restart"
	HandoverReusePort Handover = "reuse-port"
)

// Reload is how a shared proxy gets new files.
type Reload struct {
	Check        []string `json:"check"`
	ReloadSignal string   `json:"reloadSignal,omitempty"`
}

// Probe says where and when a proxy is asked: by HTTP if there is HTTPGet, else at a port or at a socket.
type Probe struct {
	HTTPGet *HTTPGet `json:"httpGet,omitempty"`
	TCPPort int32    `json:"tcpPort,omitempty"`
	Socket  string   `json:"socket,omitempty"`
	// SlotPorts has a proxy of slot 1 asked at the port after the named one.
	SlotPorts        bool  `json:"slotPorts,omitempty"`
	StartSeconds     int32 `json:"startSeconds,omitempty"`
	PeriodSeconds    int32 `json:"periodSeconds,omitempty"`
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
}

// HTTPGet is a request to a port of 127.0.0.1, or to a unix socket.
type HTTPGet struct {
	Port   int32  `json:"port,omitempty"`
	Socket string `json:"socket,omitempty"`
	Path   string `json:"path,omitempty"`
}

// SpecOf returns what a ProxyProfile says. From here a field of the object gets to the runtime by Instance.Spec, which returns a sidecar.Spec. The error is
// about what the schema cannot refuse, and about objects that an earlier schema has let in.
func SpecOf(s *v1alpha1.ProxyProfileSpec) (Spec, error) {
	s = s.DeepCopy()
	out := Spec{NamespaceSelector: s.NamespaceSelector, Handover: HandoverNone, Network: s.Network, Rollout: s.Rollout()}
	if p := s.Process(); p != nil {
		out.Image, out.ImagePullSecrets, out.Env, out.RestartPolicy = p.Image, p.ImagePullSecrets, p.Env, p.RestartPolicy
		out.RunAsUser, out.RunAsGroup, out.Resources = p.RunAsUser, p.RunAsGroup, p.Resources
	}
	kinds, wrong := 0, []error{}
	if c := s.Container; c != nil {
		kinds++
		wrong = append(wrong, out.container(c))
	}
	if i := s.Istio; i != nil {
		kinds++
		out.Istio, out.Transparent = &istio.ControlPlane{Revision: i.Revision, Namespace: i.Namespace}, i.Transparent
		out.Readiness = Probe{StartSeconds: i.Readiness.StartSeconds, PeriodSeconds: i.Readiness.PeriodSeconds, FailureThreshold: i.Readiness.FailureThreshold}
		if of := i.Update.Handover; of == nil || of.None == nil {
			out.Handover = HandoverReusePort
		}
	}
	if h := s.Shared; h != nil {
		kinds++
		out.Shared = &Reload{h.Check, h.ReloadSignal}
		out.Files, out.RunAsGroup = h.Files, h.RunAsGroup
	}
	if kinds != 1 {
		wrong = append(wrong, errors.New("spec has to have exactly one of container, istio and shared: write a profile that an earlier build has read anew"))
	}
	if s.Network.OutboundPort == s.Network.InboundPort {
		wrong = append(wrong, fmt.Errorf("network: outboundPort and inboundPort are both %d", s.Network.InboundPort))
	}
	return out, errors.Join(append(wrong, out.check())...)
}

// container takes over what a container says.
func (s *Spec) container(c *v1alpha1.Container) error {
	s.Command, s.Args, s.Files, s.Secrets, s.Transparent = c.Command, c.Args, c.Files, c.Secrets, c.Transparent
	ways := 0
	if by := c.Update.Handover; by != nil {
		for _, of := range []struct {
			way Handover
			is  bool
		}{{HandoverNone, by.None != nil}, {HandoverHAProxy, by.HAProxy != nil}, {HandoverReusePort, by.ReusePort != nil}, {HandoverEnvoy, by.EnvoyHotRestart != nil}} {
			if of.is {
				s.Handover, ways = of.way, ways+1
			}
		}
		if by.ReusePort != nil {
			s.StopSignal = by.ReusePort.StopSignal
		}
		s.HotRestart = by.EnvoyHotRestart
	}
	beside := s.Handover == HandoverReusePort
	r := c.Readiness
	s.Readiness = Probe{
		HTTPGet: httpGet(r.HTTPGet, r.HTTPSocket), TCPPort: r.TCPPort, Socket: r.Socket, SlotPorts: beside && (r.HTTPGet != nil || r.TCPPort != 0),
		StartSeconds: r.StartSeconds, PeriodSeconds: r.PeriodSeconds, FailureThreshold: r.FailureThreshold,
	}
	if l := c.Liveness; l != nil {
		s.Liveness = &Probe{
			HTTPGet: httpGet(l.HTTPGet, l.HTTPSocket), TCPPort: l.TCPPort, SlotPorts: beside && (l.HTTPGet != nil || l.TCPPort != 0),
			PeriodSeconds: l.PeriodSeconds, FailureThreshold: l.FailureThreshold,
		}
	}
	if ways > 1 {
		return errors.New("update.handover has more than one way")
	}
	return nil
}

func httpGet(port *v1alpha1.HTTPGet, socket *v1alpha1.HTTPSocket) *HTTPGet {
	switch {
	case port != nil:
		return &HTTPGet{Port: port.Port, Path: port.Path}
	case socket != nil:
		return &HTTPGet{Socket: socket.Name, Path: socket.Path}
	}
	return nil
}

// hotRestartFlags are set by the agent.
func hotRestartFlags() []string {
	return []string{
		"--base-id", "--base-id-path", "--use-dynamic-base-id", "--restart-epoch", "--socket-path", "--socket-mode", "--drain-time-s",
		"--parent-shutdown-time-s", "--hot-restart-version", "--disable-hot-restart", "--skip-hot-restart-on-no-parent",
	}
}

// check returns what contradicts itself.
func (s *Spec) check() error {
	var wrong []error
	says := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	arguments := slices.Concat(s.Command, s.Args)
	if (s.Handover == HandoverHAProxy || s.Handover == HandoverEnvoy) && len(arguments) == 0 {
		says("update.handover adds arguments: set command or args")
	}
	for _, a := range arguments {
		flag, _, _ := strings.Cut(a, "=")
		if s.Handover == HandoverEnvoy && slices.Contains(hotRestartFlags(), flag) {
			says("with the handover envoyHotRestart the agent sets %s itself: take it out of command and args", flag)
		}
	}
	for _, e := range s.Env {
		if e.Value != "" && e.FieldPath != "" {
			says("env %q: value and fieldPath exclude each other", e.Name)
		}
	}
	for _, secret := range s.Secrets {
		if secret.UpgradeOnRotation && secret.WorkloadAPI != nil {
			says("secret %q: upgradeOnRotation is for secret, configMap and serviceAccountToken: a proxy asks the workload API itself", secret.Name)
		}
	}
	if s.Handover == HandoverReusePort && s.Istio == nil {
		wrong = append(wrong, ofOneEpoch("readiness", s.Readiness))
		if l := s.Liveness; l != nil {
			wrong = append(wrong, ofOneEpoch("liveness", *l))
		}
	}
	return errors.Join(wrong...)
}

// ofOneEpoch returns an error if a question could be answered by the proxy of another epoch, which listens beside.
func ofOneEpoch(probe string, r Probe) error {
	port, socket := r.TCPPort, r.Socket
	if get := r.HTTPGet; get != nil {
		port, socket = get.Port, get.Socket
	}
	switch {
	case port == 65535:
		return fmt.Errorf("%s: with the handover reusePort a proxy of slot 1 is asked at the port after %d, and there is none", probe, port)
	case port == 0 && !strings.Contains(socket, "{epoch}"):
		return fmt.Errorf("%s: with the handover reusePort the other proxy would answer at the socket %q: its name needs {epoch}, as in admin-{epoch}.sock", probe, socket)
	}
	return nil
}
