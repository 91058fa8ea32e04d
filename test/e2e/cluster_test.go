package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// cluster is the cluster as seen from its control plane's network namespace, where this program runs. node and runtime are the first node's, or
// what onNode has put there.
type cluster struct {
	rest    *rest.Config
	api     kubernetes.Interface
	runtime criv1.RuntimeServiceClient
	node    node
}

// node is what `kc status` tells.
type node struct {
	NodeRoot string // the node's files as this program sees them
	NodePID  int    // a process in the node's namespaces
	NodeName string
	NodeIPs  string
	Tools    string // the images' directory is above it
	// The container runtime: its daemon's name, and its socket on the node.
	Runtime       string
	RuntimeSocket string
}

// ip is the node's IPv4 address.
func (n node) ip() string {
	first, _, _ := strings.Cut(n.NodeIPs, ",")
	return first
}

// shared connects once for all tests.
var shared = sync.OnceValues(connect)

func connect() (*cluster, error) {
	file := os.Getenv("KUBECONFIG")
	if file == "" {
		return nil, errors.New("no cluster: KUBECONFIG is not set")
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	config.QPS, config.Burst = 200, 400 // many tests are one client here
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	c := &cluster{rest: config, api: api}
	out, err := exec.Command("kc", "status", "-o", "json").Output()
	if err != nil {
		return nil, fmt.Errorf("ask kc for the cluster's paths: %w", err)
	}
	if err := json.Unmarshal(out, &c.node); err != nil {
		return nil, fmt.Errorf("read kc's answer: %w", err)
	}
	return c, c.dialRuntime()
}

// dialRuntime prepares a connection; nothing is sent before the first question.
func (c *cluster) dialRuntime() error {
	conn, err := grpc.NewClient("unix://"+c.node.NodeRoot+c.node.RuntimeSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to the container runtime: %w", err)
	}
	c.runtime = criv1.NewRuntimeServiceClient(conn)
	return nil
}

func open(t testing.TB) *cluster {
	t.Helper()
	c, err := shared()
	must(t, err)
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// family is IPv4 or IPv6 with the addresses that it has here.
type family struct {
	name string
	// client is this program's address towards pods, passthrough the proxy's towards its application.
	client, passthrough, loopback netip.Addr
	// world is a prefix of which this program has every address.
	world netip.Prefix
}

func families() []family {
	return []family{
		newFamily("IPv4", "172.30.0.1", "127.0.0.6", "127.0.0.1", "203.0.113.0/24"),
		newFamily("IPv6", "fd00:172:30::1", "::6", "::1", "2001:db8:1::/64"),
	}
}

func newFamily(name, client, passthrough, loopback, world string) family {
	ip := netip.MustParseAddr
	return family{name: name, client: ip(client), passthrough: ip(passthrough), loopback: ip(loopback), world: netip.MustParsePrefix(world)}
}

// at is the world's address that ends with the byte n, at a port. Tests tell connections apart by their destination.
func (f family) at(n byte, port uint16) netip.AddrPort {
	b := f.world.Addr().AsSlice()
	b[len(b)-1] = n
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a, port)
}

// nodeStatus is what the kubelet reports of the node.
func (c *cluster) nodeStatus(t testing.TB) corev1.NodeStatus {
	t.Helper()
	node, err := c.api.CoreV1().Nodes().Get(t.Context(), c.node.NodeName, metav1.GetOptions{})
	must(t, err)
	return node.Status
}
