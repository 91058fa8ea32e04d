package kerneltest

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"istio-pod-network-controller/hack/cluster/internal/link"
	"istio-pod-network-controller/hack/cluster/internal/plan"
	"istio-pod-network-controller/hack/cluster/internal/space"
)

const (
	nft = "/usr/sbin/nft"
	// ProxyUser is who the rules take for the proxy.
	ProxyUser = 1337
	// ReadyPort is the one port that inbound redirection leaves alone.
	ReadyPort = 15021
)

//go:embed rules.nft
var rules string

//go:embed transparent.nft
var transparentRules string

// Pod is a network namespace with redirection rules, for a proxy under test, joined to another one, the world.
type Pod struct {
	plan  plan.Plan
	pod   int
	world int
	user  uint32 // whom the proxy runs as
}

// NewPod makes both namespaces, with rules and without a proxy yet.
func NewPod(t *testing.T) *Pod {
	t.Helper()
	return newPod(t, ProxyUser, rules)
}

// NewTransparentPod is NewPod with the rules of TPROXY, for a proxy that runs as root.
func NewTransparentPod(t *testing.T) *Pod {
	t.Helper()
	p := newPod(t, 0, transparentRules)
	p.in(t, p.pod, routeMarked)
	return p
}

func newPod(t *testing.T, user uint32, rules string) *Pod {
	t.Helper()
	Root(t)
	File(t, nft)
	p := &Pod{plan: plan.Default(), pod: hold(t), world: hold(t), user: user}
	p.in(t, p.world, func() error { return errors.Join(link.ControlPlane(p.plan), link.Join(p.plan, p.pod)) })
	p.in(t, p.pod, func() error { return link.Node(p.plan) })
	p.in(t, p.pod, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		source := &net.IPNet{IP: net.ParseIP("::6"), Mask: net.CIDRMask(128, 128)}
		return netlink.AddrAdd(lo, &netlink.Addr{IPNet: source, Flags: syscall.IFA_F_NODAD})
	})
	load := exec.Command(nft, "-f", "-")
	load.Stdin = strings.NewReader(rules)
	p.in(t, p.pod, func() error {
		out, err := load.CombinedOutput()
		if err != nil {
			t.Logf("nft: %s", out)
		}
		return err
	})
	return p
}

// Run starts the proxy in the pod, in ProxyUser's group, and waits until it is ready. Its output goes to the returned file.
func (p *Pod) Run(t *testing.T, environ []string, argv ...string) (log string) {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := p.command(environ, argv)
	cmd.Stdout, cmd.Stderr = file, file
	p.in(t, p.pod, cmd.Start)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if text, err := os.ReadFile(file.Name()); t.Failed() && err == nil {
			t.Logf("the proxy's log:\n%s", text)
		}
	})
	ready := "http://" + netip.AddrPortFrom(p.plan.Node.V4.Addr(), ReadyPort).String() + "/healthz/ready"
	for deadline := time.Now().Add(10 * time.Second); ; {
		response, err := p.http().Get(ready)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return file.Name()
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the proxy is not ready: %v", err)
		}
	}
}

// Try runs a program to its end in the proxy's place and returns its output.
func (p *Pod) Try(t *testing.T, environ []string, argv ...string) (out string, err error) {
	t.Helper()
	var printed strings.Builder
	cmd := p.command(environ, argv)
	cmd.Stdout, cmd.Stderr = &printed, &printed
	p.in(t, p.pod, cmd.Start)
	err = cmd.Wait()
	return printed.String(), err
}

func (p *Pod) command(environ, argv []string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = "/", environ
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: p.user, Gid: ProxyUser}}
	return cmd
}

// Serve answers every connection to a port, on the pod (the application) or in the world, with who the server sees as its peer.
func (p *Pod) Serve(t *testing.T, onPod bool, port uint16) {
	t.Helper()
	where := p.world
	if onPod {
		where = p.pod
	}
	var l net.Listener
	p.in(t, where, func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(int(port))))
		return err
	})
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(c.RemoteAddr().String() + " " + c.LocalAddr().String() + "\n"))
			_ = c.Close()
		}
	}()
}

// Ask connects from the pod or the world and returns the peer and the local address that the server saw.
func (p *Pod) Ask(t *testing.T, fromPod bool, to netip.AddrPort) (peer, local netip.AddrPort, err error) {
	t.Helper()
	where := p.world
	if fromPod {
		where = p.pod
	}
	var c net.Conn
	err = space.Do(where, space.ControlPlane, func() (err error) {
		c, err = net.DialTimeout("tcp", to.String(), 5*time.Second)
		return err
	})
	if err != nil {
		return peer, local, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return peer, local, err
	}
	first, second, _ := strings.Cut(strings.TrimSpace(line), " ")
	return parse(t, first), parse(t, second), nil
}

// Get asks the proxy's own port a question and decodes its JSON.
func (p *Pod) Get(t *testing.T, path string, v any) {
	t.Helper()
	response, err := p.http().Get("http://" + netip.AddrPortFrom(p.plan.Node.V4.Addr(), ReadyPort).String() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(v); err != nil {
		t.Fatal(err)
	}
}

// Addrs are the pod's addresses, and addresses of the world, IPv4 first.
func (p *Pod) Addrs() (pod, world []netip.Addr) {
	for i, prefix := range p.plan.Node.Both() {
		pod = append(pod, prefix.Addr())
		world = append(world, p.plan.World.Both()[i].Addr().Next())
	}
	return pod, world
}

// WorldAddrs are the addresses that the world's own connections to the pod have, IPv4 first.
func (p *Pod) WorldAddrs() (addrs []netip.Addr) {
	for _, prefix := range p.plan.ControlPlane.Both() {
		addrs = append(addrs, prefix.Addr())
	}
	return addrs
}
