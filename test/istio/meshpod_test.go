package istio

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/test/kerneltest"
)

// meshPod is a pod whose connections are redirected to its proxy.
type meshPod struct {
	world     *world
	name, ip  string
	labels    map[string]string
	ns        *netns.NS
	proxies   int
	transport *http.Transport // of its application
}

// redirect is what Istio's rules come to: connections of others than the proxy go to it, in both directions.
const redirect = `table ip mesh {
  chain out { type nat hook output priority -100; meta skuid 1337 accept; ip daddr 127.0.0.0/8 accept; meta l4proto tcp redirect to :15001; }
  chain in { type nat hook prerouting priority -100; tcp dport { 15020, 15021, 15090, 15120, 15220 } accept; meta l4proto tcp redirect to :15006; }
}`

// addPod makes a pod of a service account that has its name.
func (w *world) addPod(t *testing.T, name, ip string, labels map[string]string) *meshPod {
	t.Helper()
	p := &meshPod{world: w, name: name, ip: ip, labels: labels, ns: kerneltest.New(t)}
	end := "to-" + name
	kerneltest.JoinByVeth(t, w.node, end, p.ns, "eth0")
	kerneltest.Shell(t, w.node, "ip link set "+end+" master br0", "")
	kerneltest.AddAddresses(t, p.ns, "eth0", ip+"/16")
	kerneltest.AddRoute(t, p.ns, "0.0.0.0/0", nodeIP)
	kerneltest.Sysctl(t, p.ns, "net/ipv4/tcp_migrate_req", "1")
	kerneltest.Shell(t, p.ns, "nft -f -", redirect)
	p.transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return p.dial(ctx, address)
	}}
	w.pods[name] = p
	return p
}

// dial connects as the pod's application.
func (p *meshPod) dial(ctx context.Context, address string) (c net.Conn, err error) {
	errAs := kerneltest.As(p.ns, kerneltest.App, func() error {
		c, err = new(net.Dialer).DialContext(ctx, "tcp", address)
		return err
	})
	if err == nil {
		err = errAs
	}
	return c, err
}

// overHTTP2 is the pod's application as a client of HTTP/2 without TLS, which keeps its connection.
func (p *meshPod) overHTTP2() *meshPod {
	transport := &http.Transport{DialContext: p.transport.DialContext, Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	return &meshPod{world: p.world, name: p.name, ip: p.ip, ns: p.ns, transport: transport}
}

// answered is what an application answers.
type answered struct {
	Pod      string
	Protocol string
	Headers  http.Header
	status   int
	body     string
}

// serve has the pod's application answer on a port with who it is and what it was sent.
func (p *meshPod) serve(t *testing.T, port uint16) {
	t.Helper()
	l := kerneltest.ListenTCP(t, p.ns, kerneltest.App, false, fmt.Sprintf("0.0.0.0:%d", port))
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(answered{Pod: p.name, Protocol: r.Proto, Headers: r.Header})
	})}
	server.Protocols = new(http.Protocols)
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	go server.Serve(l) //nolint:errcheck // ends with the test
}

// serveBytes has the pod's application answer lines.
func (p *meshPod) serveBytes(t *testing.T, port uint16) {
	t.Helper()
	go answerBytes(kerneltest.ListenTCP(t, p.ns, kerneltest.App, false, fmt.Sprintf("0.0.0.0:%d", port)), p.name)
}

// answerBytes reads what a client sends to its end, and answers with it behind a name.
func answerBytes(l net.Listener, name string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close() //nolint:errcheck // it is over
			text, err := io.ReadAll(c)
			if err == nil {
				_, _ = fmt.Fprintf(c, "%s %s", name, text)
			}
		}()
	}
}

// exchange sends a text and returns the answer.
func (p *meshPod) exchange(ctx context.Context, address, text string) (string, error) {
	c, err := p.dial(ctx, address)
	if err != nil {
		return "", err
	}
	return converse(c, text)
}

// converse sends a text on a connection, reads the answer to its end, and closes the connection.
func converse(c net.Conn, text string) (string, error) {
	defer c.Close() //nolint:errcheck // it was read
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	return string(answer), err
}

// get asks as the pod's application, through its proxy or, if it has none, directly.
func (p *meshPod) get(t *testing.T, host, address, path string) (answered, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	response, err := p.transport.RoundTrip(r)
	if err != nil {
		return answered{}, err
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	text, err := io.ReadAll(response.Body)
	a := answered{status: response.StatusCode, body: string(text)}
	if a.status == http.StatusOK {
		err = json.Unmarshal(text, &a)
	}
	return a, err
}
