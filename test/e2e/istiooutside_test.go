package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// meshPort is where the applications of the mesh listen.
	meshPort uint16 = 9080
	// istioImage has pilot-agent, with a stand-in for Envoy or the Envoy that E2E_ENVOY names.
	istioImage = "localhost/proxyv2:outside"
	// identityWithin is how long a pod that is ready may be without its identity.
	identityWithin = 5 * time.Second
)

// outside is Istio with a control plane for the pods of all parts. Its own namespace is injected.
type outside struct{ *migration }

// Istio's own proxy runs outside of pods' specs, and is a member of the mesh like an injected one. The parts share a real istiod.
//
// Not parallel: a node has one Istio.
//
//e2e:rounds istio
func TestIstioOutside(t *testing.T) {
	o := outside{&migration{guide: newSpace(t, asked()).newGuide(t)}}
	o.mustKubectl(t, "apply", "-f", "../../hack/cluster/samples/dns.yaml")
	t.Cleanup(func() { o.mustKubectl(t, "delete", "-f", "../../hack/cluster/samples/dns.yaml", "--ignore-not-found") })
	o.installIstio(t, false, "--set", "pilot.cni.enabled=true", "--set", "global.proxy.image="+istioImage)
	o.helm(t, "install", "istio-base", "istio/base", "-n", "istio-system")
	t.Cleanup(func() {
		o.helm(t, "uninstall", "istio-base", "-n", "istio-system", "--ignore-not-found")
		o.mustKubectl(t, "delete", "crd", "--selector", "chart=istio", "--ignore-not-found")
	})
	o.mustKubectl(t, "rollout", "status", "deployment/dns", "-n", "kube-system", "--timeout", "1m")
	o.letAgentRunIstio(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"identities", o.identities},
		{"probes", o.probes},
		{"transparent", o.transparent},
		{"bookinfo", o.bookinfo},
		{"upgrades", o.upgrades},
		{"revisions", o.revisions},
		{"tokens", o.tokens},
		{"mixed", o.mixed},
		{"moves", o.moves},
		{"ends", o.ends},
		{"mistakes", o.mistakes},
		{"starts", o.starts},
		{"roots", o.roots},
	} {
		t.Run(part.name, part.run)
	}
}

// letAgentRunIstio gives the agent the rights for it until the test ends. The chart wants the control plane's namespace to be there.
func (o outside) letAgentRunIstio(t *testing.T) {
	t.Helper()
	values := filepath.Join(t.TempDir(), "values.yaml")
	must(t, os.WriteFile(values, []byte(helm(t, "get", "values", agentName, "-n", agentName, "-o", "yaml")), 0o600))
	upgrade := []string{"upgrade", agentName, "chart/" + agentName, "-n", agentName, "--reset-values", "-f", values, "--wait", "--timeout", "2m"}
	t.Cleanup(func() { helm(t, upgrade...) })
	helm(t, append(upgrade, "--set", "proxies.istio.enabled=true", "--set", "proxies.istio.image="+istioImage)...)
	o.agent(t)
}

// mesh makes a namespace and a profile for its pods: the sample's, as changed.
func (o outside) mesh(t *testing.T, change ...func(spec map[string]any)) managed {
	t.Helper()
	return newManagedFrom(t, "proxy-profile-istio.yaml", append(change, ofIstioImage)...)
}

func ofIstioImage(spec map[string]any) { spec["image"] = istioImage }

// member is a pod of an application with a ServiceAccount and a Service of its name. Nothing of the mesh is in its spec but the readiness gate.
func (m managed) member(t *testing.T, app, version string, ask ...string) *corev1.Pod {
	t.Helper()
	accounts, services := m.api.CoreV1().ServiceAccounts(m.name), m.api.CoreV1().Services(m.name)
	_, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: app}}, metav1.CreateOptions{})
	must(t, exists(err))
	_, err = services.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: app}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": app}, Ports: []corev1.ServicePort{{Name: "http", Port: int32(meshPort)}},
	}}, metav1.CreateOptions{})
	must(t, exists(err))
	pod := plainPod(app + "-" + version)
	pod.Labels = map[string]string{"app": app, "version": version}
	pod.Spec.ServiceAccountName = app
	c := &pod.Spec.Containers[0]
	c.Args = []string{"serve", fmt.Sprintf("-http=%d", meshPort), "-ask=" + strings.Join(ask, ",")}
	c.Ports = []corev1.ContainerPort{{ContainerPort: int32(meshPort)}}
	return pod
}

// exists drops the error that an object exists.
func exists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// meshURL is an application's address in the mesh.
func meshURL(app string) string { return fmt.Sprintf("http://%s:%d/", app, meshPort) }

// spiffe is the identity of an application's pods.
func (s *space) spiffe(app string) string {
	return "spiffe://cluster.local/ns/" + s.name + "/sa/" + app
}

// calledBy wants an application to have been asked by mTLS, by a caller, as the proxy of the application has said.
func (s *space) calledBy(a answer, callee, caller string) error {
	said := strings.Split(a.ClientCert, ";")
	for _, want := range []string{"By=" + s.spiffe(callee), "URI=" + s.spiffe(caller)} {
		if !slices.Contains(said, want) {
			return fmt.Errorf("%s says that it was asked with the certificate %q, want %s", a.Banner, a.ClientCert, want)
		}
	}
	return nil
}

// testapp runs a client in a pod's application.
func (s *space) testapp(ctx context.Context, from *corev1.Pod, args ...string) (string, error) {
	return s.run(ctx, command{namespace: s.name, pod: from.Name, container: "app", argv: append([]string{"/testapp"}, args...)})
}

// asks has a pod ask a URL until the answer is as check wants it.
func (s *space) asks(t *testing.T, patience time.Duration, from *corev1.Pod, url string, check func(answer) error) {
	t.Helper()
	within(t, patience, from.Name+" asks "+url, func(ctx context.Context) error {
		out, err := s.testapp(ctx, from, "get", url)
		if err != nil {
			return err
		}
		return check(decode[answer](t, out))
	})
}

// meshRoots are the mesh's root certificates, as Istio hands them out in the namespace.
func (s *space) meshRoots(ctx context.Context) (string, error) {
	found, err := s.api.CoreV1().ConfigMaps(s.name).Get(ctx, "istio-ca-root-cert", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return found.Data["root-cert.pem"], nil
}

// certificateOf returns the certificate that a pod's proxy shows to a client that trusts some roots.
func certificateOf(ctx context.Context, pod *corev1.Pod, roots string) (shown *x509.Certificate, err error) {
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM([]byte(roots))
	dialer := tls.Dialer{Config: &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"istio-http/1.1", "istio"},
		InsecureSkipVerify: true, //nolint:gosec // the certificate has no host's name; VerifyConnection has the rest
		VerifyConnection: func(state tls.ConnectionState) error {
			leaf, between := state.PeerCertificates[0], x509.NewCertPool()
			for _, c := range state.PeerCertificates[1:] {
				between.AddCert(c)
			}
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: trusted, Intermediates: between}); err != nil {
				return err
			}
			shown = leaf
			return nil
		},
	}}
	// The proxy asks for a certificate, too, and refuses the connection without. By then it has shown its own.
	conn, err := dialer.DialContext(ctx, "tcp", at(pod, families()[0], meshPort).String())
	if err == nil {
		_ = conn.Close()
	}
	if shown == nil {
		return nil, errors.Join(errors.New("it shows no certificate of the mesh"), err)
	}
	return shown, nil
}

// hasIdentity wants a pod's proxy to show the identity of the pod's ServiceAccount, by a certificate of the mesh.
func (s *space) hasIdentity(ctx context.Context, pod *corev1.Pod) error {
	roots, err := s.meshRoots(ctx)
	if err != nil {
		return err
	}
	shown, err := certificateOf(ctx, pod, roots)
	if err != nil {
		return err
	}
	if want := s.spiffe(pod.Spec.ServiceAccountName); len(shown.URIs) != 1 || shown.URIs[0].String() != want {
		return fmt.Errorf("its identity is %v, want %s", shown.URIs, want)
	}
	return nil
}

// wantIdentities wants each pod, once it is ready, to show its identity. The pods are replaced by what they are then.
func (m managed) wantIdentities(t *testing.T, pods []*corev1.Pod) {
	t.Helper()
	for i := range pods {
		pods[i] = m.await(t, pods[i].Name, isReadyNow)
		within(t, identityWithin, "the identity of "+pods[i].Name, func(ctx context.Context) error { return m.hasIdentity(ctx, pods[i]) })
	}
}

// apply makes objects, or changes them.
func (s *space) apply(t *testing.T, manifest string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "manifest.yaml")
	must(t, os.WriteFile(file, []byte(manifest), 0o600))
	s.mustKubectl(t, "apply", "-n", s.name, "-f", file)
}

// strict has the namespace take mTLS alone.
const strict = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default}
spec: {mtls: {mode: STRICT}}
`

// proxyConfig gives the proxies of the namespace a variable.
const proxyConfig = `
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: all}
spec: {environmentVariables: {FROM_OBJECT: "yes"}}
`

// A client and a server, whose proxies know each other by their ServiceAccounts.
func (o outside) identities(t *testing.T) {
	m := o.mesh(t)
	m.apply(t, proxyConfig)
	pods := []*corev1.Pod{m.create(t, m.member(t, "store", "v1")), m.create(t, m.member(t, "shopper", "v1"))}
	m.wantIdentities(t, pods)
	store, shopper := pods[0], pods[1]
	for _, pod := range pods {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", m.containerPID(t, pod, managedProxy)))
		if must(t, err); !strings.Contains(string(env), "\x00FROM_OBJECT=yes\x00") {
			t.Errorf("%s has the environment %q", pod.Name, env)
		}
	}
	m.asks(t, identityWithin, shopper, meshURL("store"), func(a answer) error { return m.calledBy(a, "store", "shopper") })
	m.apply(t, strict)
	eventually(t, "the refusal of a client without a certificate", func(ctx context.Context) error { return refused(fromOutside(ctx, store)) })
	m.asks(t, identityWithin, shopper, meshURL("store"), func(a answer) error { return m.calledBy(a, "store", "shopper") })
}
