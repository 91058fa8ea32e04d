package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// keyEgressNames is the annotation of namespaces with the names to which their pods may connect.
const keyEgressNames = "pod-network-controller.istio.io/egress-names"

// egress is a pod behind the proxy that allows names, and where its connections go: to the address that it dials, or to the address of all names.
type egress struct {
	managed
	pod          *corev1.Pod
	dialled      netip.Addr
	named        string
	plain, crypt uint16 // the world's ports for HTTP and for TLS
}

// newEgress makes a namespace that allows some names, and a pod in it. number keeps the resolvers of tests that run at once apart.
func newEgress(t *testing.T, number byte, names string) egress {
	t.Helper()
	f := families()[0]
	resolver := f.at(number, 53)
	serveNamesAt(t, []string{families()[1].at(number, 53).Addr().String(), resolver.Addr().String()}, resolver.String())
	e := egress{newManagedFrom(t, "proxy-profile-egress.yaml"), plainPod("agent"), f.at(1, 0).Addr(), resolver.Addr().String(), worldPort, serveTLS(t)}
	e.annotateSelf(t, map[string]any{keyEgressNames: names})
	e.pod.Spec.DNSPolicy = corev1.DNSNone
	e.pod.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{resolver.Addr().String()}}
	e.pod = e.startManaged(t, e.pod)
	e.awaitSidecar(t, e.pod.Name, isServing(0))
	return e
}

// serveTLS answers as the world by TLS while the test runs.
func serveTLS(t *testing.T) (port uint16) {
	t.Helper()
	c := newCertificate(t, 1, x509.NewCertPool())
	pair, err := tls.X509KeyPair(c.files["tls.crt"], c.files["tls.key"])
	must(t, err)
	l, err := net.Listen("tcp", "[::]:0")
	must(t, err)
	server := &http.Server{
		ReadHeaderTimeout: patience, Handler: http.HandlerFunc(tellConnection),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
	}
	go server.ServeTLS(l, "", "") //nolint:errcheck // ends with the test
	t.Cleanup(func() { _ = server.Close() })
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// ask has the pod ask for names, by one connection to an address of its choice, and gives the addresses that were asked.
func (e egress) ask(t *testing.T, scheme string, names ...string) (asked []string, err error) {
	t.Helper()
	port := map[string]uint16{"http": e.plain, "https": e.crypt}[scheme]
	url := fmt.Sprintf("%s://%s/", scheme, netip.AddrPortFrom(e.dialled, port))
	out, err := e.tryFrom(t, e.pod, "get", "-host="+strings.Join(names, ","), url)
	for all := json.NewDecoder(strings.NewReader(out)); all.More(); {
		var a answer
		must(t, all.Decode(&a))
		at, errAddress := netip.ParseAddrPort(a.Local)
		must(t, errAddress)
		asked = append(asked, at.Addr().Unmap().String())
	}
	return asked, err
}

// wantAllowed wants a name to be reached, by HTTP and by TLS, at its own address.
func (e egress) wantAllowed(t *testing.T, name string) {
	t.Helper()
	for _, scheme := range []string{"http", "https"} {
		if asked, err := e.ask(t, scheme, name); err != nil || len(asked) != 1 || asked[0] != e.named {
			t.Errorf("%s://%s reached %v, error %v; want %s", scheme, name, asked, err, e.named)
		}
	}
}

// wantDenied wants a name not to be reached, and a line for each try.
func (e egress) wantDenied(t *testing.T, name string, epoch int) {
	t.Helper()
	for _, scheme := range []string{"http", "https"} {
		asked, err := e.ask(t, scheme, name)
		if err == nil || len(asked) > 0 || scheme == "http" && !strings.Contains(err.Error(), "403 Forbidden") {
			t.Errorf("%s://%s reached %v, error %v", scheme, name, asked, err)
		}
		e.awaitLog(t, fmt.Sprintf(`outbound epoch=%d refused:not-allowed name="%s" original-dst=%s:%d `, epoch, name, e.dialled, map[string]uint16{"http": e.plain, "https": e.crypt}[scheme]))
	}
}

// awaitLog waits for words in a line of the pod's proxies.
func (e egress) awaitLog(t *testing.T, words string) {
	t.Helper()
	eventually(t, "a line of the proxy", func(context.Context) error {
		if log := e.proxyLog(t, e.pod); !strings.Contains(log, words) {
			return fmt.Errorf("no %q in:\n%s", words, log)
		}
		return nil
	})
}

// awaitReplaced waits until a proxy of this epoch or a later one serves alone: until an old one has ended it may take connections.
func (e egress) awaitReplaced(t *testing.T, epoch int64) {
	t.Helper()
	e.awaitSidecar(t, e.pod.Name, func(status map[string]any) error {
		if now, _ := status["epoch"].(int64); status["state"] != "Running" || status["ready"] != true || now < epoch {
			return fmt.Errorf("it says %v", status)
		}
		return nil
	})
	eventually(t, "the end of the old proxy", func(ctx context.Context) error {
		all, err := e.proxies(ctx)
		running := slices.DeleteFunc(all, func(c *criv1.Container) bool { return c.GetState() != criv1.ContainerState_CONTAINER_RUNNING })
		if err == nil && len(running) != 1 {
			err = fmt.Errorf("%d proxies run", len(running))
		}
		return err
	})
}

// A pod reaches the names that its namespace allows, and no others, whatever address it dials; each request of a connection is looked at.
//
//e2e:rounds nri
func TestEgressAllowsTheNamesOfTheNamespace(t *testing.T) {
	t.Parallel()
	e := newEgress(t, 60, "allowed.example, *.below.example")
	for _, name := range []string{"allowed.example", "ALLOWED.example.", "a.b.below.example"} {
		e.wantAllowed(t, name)
	}
	for _, name := range []string{"refused.example", "below.example", "notbelow.example"} {
		e.wantDenied(t, name, 0)
	}
	if asked, err := e.ask(t, "http", e.dialled.String()); err == nil || len(asked) > 0 { // of an address TLS sends no name
		t.Errorf("an address was reached: %v", asked)
	}
	asked, err := e.ask(t, "http", "allowed.example", "again-refused.example")
	if err == nil || !strings.Contains(err.Error(), "403 Forbidden") || len(asked) != 1 || asked[0] != e.named {
		t.Errorf("a connection with another name in its second request reached %v, error %v", asked, err)
	}
	e.awaitLog(t, `refused:not-allowed name="again-refused.example"`)

	var a answer // inbound connections are the application's, through the proxy: the test's namespace says nothing of them
	e.awaitListening(t, e.pod)
	must(t, request(t.Context(), at(e.pod, families()[0], appPort), "/", &a))
}

// A change of the namespace's annotation reaches pods that run. One that cannot be read leaves them what they may, and says why.
//
//e2e:rounds nri
func TestEgressFollowsTheNamespacesAnnotation(t *testing.T) {
	t.Parallel()
	e := newEgress(t, 61, "first.example")
	e.wantAllowed(t, "first.example")
	e.wantDenied(t, "second.example", 0)

	e.annotateSelf(t, map[string]any{keyEgressNames: "second.example"})
	e.awaitReplaced(t, 1)
	e.wantAllowed(t, "second.example")
	e.wantDenied(t, "first.example", 1)

	e.annotateSelf(t, map[string]any{keyEgressNames: "second.example,203.0.113.1"})
	e.awaitSidecar(t, e.pod.Name, says(true, "annotation "+keyEgressNames+" of namespace "+e.name, `item 2, "203.0.113.1", is an address`))
	e.wantAllowed(t, "second.example")

	// Without a list nothing is allowed. The pod's own annotation has no effect.
	e.annotate(t, e.pod.Name, map[string]any{keyEgressNames: "second.example"})
	e.annotateSelf(t, map[string]any{keyEgressNames: nil})
	e.awaitReplaced(t, 2)
	if asked, err := e.ask(t, "http", "second.example"); err == nil || len(asked) > 0 {
		t.Errorf("without a list %v was reached", asked)
	}
}
