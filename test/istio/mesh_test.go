package istio

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	meshconfig "istio.io/api/mesh/v1alpha1"
	"istio.io/istio/pilot/cmd/pilot-agent/app"
	"istio.io/istio/pilot/pkg/config/kube/crd"
	fake "istio.io/istio/pilot/test/xds"
	istioagent "istio.io/istio/pkg/istio-agent"
	"istio.io/istio/pkg/security"
	"istio.io/istio/security/pkg/nodeagent/sds"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/test/kerneltest"
	"istio-pod-network-controller/test/standins/xdsenvoy"
)

// TestMain makes of the test's program also those that it starts: the real pilot-agent, and the stand-in for Envoy, which pilot-agent starts.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "pilot-agent":
		command := app.NewRootCommand(func(o *security.Options, s security.SecretManager, p *meshconfig.PrivateKeyProvider) istioagent.SDSService {
			return sds.NewServer(o, s, p)
		})
		if err := command.Execute(); err != nil {
			os.Exit(1)
		}
	case "envoy":
		os.Exit(envoy())
	default:
		os.Exit(m.Run())
	}
}

func envoy() int {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	options, err := xdsenvoy.ParseOptions(os.Args[1:])
	if err == nil {
		ctx, stop := context.WithCancel(context.Background()) //nolint:usetesting // of a program
		defer stop()
		err = xdsenvoy.Run(ctx, options, log)
	}
	if err != nil {
		log.Error("ended", "error", err)
		return 1
	}
	return 0
}

// istiodAt is where istiod serves, at the node's address, which is every pod's gateway.
const (
	nodeIP   = "10.244.1.1"
	istiodAt = nodeIP + ":15010"
)

// world is istiod's discovery on a node with pods, in namespaces of their own on one bridge.
type world struct {
	istiod   *fake.FakeDiscoveryServer
	node     *netns.NS
	ca       authority
	programs string // a directory
	pods     map[string]*meshPod
}

// newWorld starts istiod, with objects and configuration.
func newWorld(t *testing.T, objects, config string) *world {
	t.Helper()
	w := &world{node: kerneltest.New(t), ca: newAuthority(t), programs: programs(t), pods: map[string]*meshPod{}}
	kerneltest.Shell(t, w.node, "ip link add br0 type bridge && ip link set br0 up && ip address add "+nodeIP+"/16 dev br0", "")
	w.istiod = fake.NewFakeDiscoveryServer(t, fake.FakeOptions{
		KubernetesObjectString: objects, ConfigString: config,
		ListenerBuilder: func() (net.Listener, error) {
			return kerneltest.ListenTCP(t, w.node, kerneltest.Owner{}, false, istiodAt), nil
		},
	})
	return w
}

// configure adds resources of Istio's for a test, or until the function that it returns removes them.
func (w *world) configure(t *testing.T, text string) (remove func()) {
	t.Helper()
	configs, _, err := crd.ParseInputs(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range configs {
		c.Domain = "cluster.local"
		if _, err := w.istiod.Store().Create(c); err != nil {
			t.Fatal(err)
		}
	}
	var once sync.Once
	remove = func() {
		once.Do(func() {
			for _, c := range configs {
				if err := w.istiod.Store().Delete(c.GroupVersionKind, c.Name, c.Namespace, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	t.Cleanup(remove)
	return remove
}

// programs copies the test's program, and the bootstrap's template of Istio's source, for the proxies' user.
func programs(t *testing.T) string {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { //nolint:gosec // another user's programs
		t.Fatal(err)
	}
	from, err := os.Open(own)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()                                                                        //nolint:errcheck // it was read
	to, err := os.OpenFile(filepath.Join(dir, "pilot-agent"), os.O_CREATE|os.O_WRONLY, 0o755) //nolint:gosec // another user's program
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(to.Name(), filepath.Join(dir, "envoy")); err != nil {
		t.Fatal(err)
	}
	source, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "istio.io/istio").Output()
	if err != nil {
		t.Fatal(err)
	}
	template, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(source)), "tools/packaging/common/envoy_bootstrap.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bootstrap.json"), template, 0o644); err != nil { //nolint:gosec // another user's
		t.Fatal(err)
	}
	return dir
}

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

// answered is what an application answers.
type answered struct {
	Pod     string
	Headers http.Header
	status  int
	body    string
}

// serve has the pod's application answer on a port with who it is and what it was sent.
func (p *meshPod) serve(t *testing.T, port uint16) {
	t.Helper()
	l := kerneltest.ListenTCP(t, p.ns, kerneltest.App, false, fmt.Sprintf("0.0.0.0:%d", port))
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(answered{Pod: p.name, Headers: r.Header})
	})}
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

// proxy is a pod's pilot-agent with its Envoy.
type proxy struct {
	pod      *meshPod
	cmd      *exec.Cmd
	ended    chan error
	admin    int // port of Envoy's administration
	statusAt string
}

// start starts a proxy: the second in a pod has other ports where they cannot be shared.
func (p *meshPod) start(t *testing.T, env ...string) *proxy {
	t.Helper()
	dir := filepath.Join(p.world.programs, fmt.Sprintf("%s-%d", p.name, p.proxies))
	p.world.ca.issue(t, filepath.Join(dir, "var/run/secrets/workload-spiffe-credentials"), p.name)
	for _, sub := range []string{"etc/istio/proxy", "var/lib/istio/data", "var/run/secrets/workload-spiffe-uds"} {
		mkdir(t, filepath.Join(dir, sub))
	}
	give(t, dir)
	labels, err := json.Marshal(p.labels)
	if err != nil {
		t.Fatal(err)
	}
	admin, status := 15000+100*p.proxies, 15020+100*p.proxies
	config, err := json.Marshal(map[string]any{
		"discoveryAddress": istiodAt, "controlPlaneAuthPolicy": "NONE", "binaryPath": filepath.Join(p.world.programs, "envoy"),
		"configPath": filepath.Join(dir, "etc/istio/proxy"), "proxyAdminPort": admin, "statusPort": status, "drainDuration": "3s",
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(p.world.programs, "pilot-agent"), "proxy", "sidecar", "--proxyLogLevel=info")
	cmd.Dir = dir
	cmd.Env = append([]string{
		"POD_NAME=" + p.name, "POD_NAMESPACE=default", "INSTANCE_IP=" + p.ip, "SERVICE_ACCOUNT=" + p.name, "ISTIO_META_CLUSTER_ID=Kubernetes",
		"TRUST_DOMAIN=cluster.local", "CREDENTIAL_FETCHER_TYPE=", "ISTIO_META_INTERCEPTION_MODE=REDIRECT", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true", "MINIMUM_DRAIN_DURATION=1s",
		"ISTIO_METAJSON_LABELS=" + string(labels),
		"PROXY_CONFIG=" + string(config), "ISTIO_BOOTSTRAP=" + filepath.Join(p.world.programs, "bootstrap.json"), "PATH=" + os.Getenv("PATH"),
	}, env...)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: 1337, Gid: 1337}}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	if err := p.ns.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	started := &proxy{pod: p, cmd: cmd, ended: make(chan error, 1), admin: admin, statusAt: fmt.Sprintf("%s:%d", p.ip, status)}
	go func() { started.ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("%s says:\n%s", filepath.Base(dir), text)
		}
	})
	p.proxies++
	return started
}

// awaitReady waits until the agent says that its Envoy serves.
func (x *proxy) awaitReady(t *testing.T) {
	t.Helper()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
		errDo := x.pod.world.node.Do(func() error { c, err = new(net.Dialer).DialContext(ctx, network, address); return nil })
		if err == nil {
			err = errDo
		}
		return c, err
	}}}
	eventually(t, x.pod.name+" is ready", 60*time.Second, func() error {
		select {
		case err := <-x.ended:
			t.Fatalf("the proxy of %s has ended: %v", x.pod.name, err)
		default:
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+x.statusAt+"/healthz/ready", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(r)
		if err != nil {
			return err
		}
		defer response.Body.Close() //nolint:errcheck // not read
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", response.Status)
		}
		return nil
	})
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, limit time.Duration, condition func() error) {
	t.Helper()
	tick, end := time.NewTicker(50*time.Millisecond), time.After(limit)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("never: %s: %v", what, err)
		}
	}
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // another user's
		t.Fatal(err)
	}
}

// give gives a directory to the proxies' user.
func give(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, kerneltest.Proxy.UID, kerneltest.Proxy.GID)
	})
	if err != nil {
		t.Fatal(err)
	}
}
