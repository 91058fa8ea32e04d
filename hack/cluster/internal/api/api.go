// Package api asks the cluster's API server the few questions that a start waits for.
package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"istio-pod-network-controller/hack/cluster/internal/pki"
)

// Dialer connects to an address of the control plane's namespace.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

// Client talks to one API server as one user.
type Client struct {
	server string
	http   http.Client
}

// New makes a client. Every question has a short time limit: those who wait ask again.
func New(server string, ca []byte, user pki.Pair, dial Dialer) (*Client, error) {
	cert, err := tls.X509KeyPair(user.Cert, user.Key)
	if err != nil {
		return nil, fmt.Errorf("read the administrator's certificate: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &Client{server: server, http: http.Client{
		Timeout: 3 * time.Second,
		Transport: &http.Transport{
			DialContext:     dial,
			TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13},
		},
	}}, nil
}

// Ready is nil once the API server serves everything.
func (c *Client) Ready(ctx context.Context) error {
	_, err := c.get(ctx, "/readyz")
	return err
}

// NodeAddressed is nil once the node has said its addresses.
func (c *Client) NodeAddressed(ctx context.Context, name string) error {
	body, err := c.get(ctx, "/api/v1/nodes/"+name)
	if err == nil && !bytes.Contains(body, []byte(`"InternalIP"`)) {
		err = errors.New("the node has no address yet")
	}
	return err
}

// NodeReady is nil once the node has said after a time that it is ready, has these ranges of pods, and is open for them: its "not ready" taint
// is gone.
func (c *Client) NodeReady(ctx context.Context, name, pods string, after time.Time) error {
	body, err := c.get(ctx, "/api/v1/nodes/"+name)
	if err != nil {
		return err
	}
	return nodeReady(body, pods, after)
}

// DefaultServiceAccount is nil once pods can be made in the default namespace.
func (c *Client) DefaultServiceAccount(ctx context.Context) error {
	_, err := c.get(ctx, "/api/v1/namespaces/default/serviceaccounts/default")
	return err
}

// Register makes the object of a node, unless it is there, with its ranges of pods, IPv4 first. The controller manager has no order for nodes that register
// themselves.
func (c *Client) Register(ctx context.Context, name, pods string) error {
	both := strings.Split(pods, ",")
	node, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": name}, "spec": map[string]any{"podCIDR": both[0], "podCIDRs": both}})
	if err != nil {
		return fmt.Errorf("make the node: %w", err)
	}
	_, err = c.ask(ctx, http.MethodPost, "/api/v1/nodes", node, http.StatusCreated, http.StatusConflict)
	return err
}

func (c *Client) get(ctx context.Context, path string) ([]byte, error) {
	return c.ask(ctx, http.MethodGet, path, nil, http.StatusOK)
}

// ask takes any status but those wanted for "not yet".
func (c *Client) ask(ctx context.Context, method, path string, content []byte, wanted ...int) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.server+path, bytes.NewReader(content))
	if err != nil {
		return nil, fmt.Errorf("ask the API server: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the API server: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("ask the API server for %s: %w", path, err)
	}
	if !slices.Contains(wanted, resp.StatusCode) {
		return nil, fmt.Errorf("ask the API server for %s: %s", path, resp.Status)
	}
	return body, nil
}

// nodeReady wants the taint to be gone too: until then the scheduler leaves pods pending. What a node said before its power was cut is no
// answer; the API server's times have no fractions of a second.
func nodeReady(body []byte, pods string, after time.Time) error {
	var node struct {
		Spec struct {
			PodCIDRs []string
			Taints   []struct{ Key string }
		}
		Status struct {
			Conditions []struct {
				Type, Status, Message string
				LastHeartbeatTime     time.Time
			}
		}
	}
	if err := json.Unmarshal(body, &node); err != nil {
		return fmt.Errorf("read the node: %w", err)
	}
	if got := strings.Join(node.Spec.PodCIDRs, ","); got != pods {
		return fmt.Errorf("the node has the ranges of pods %q, not %s", got, pods)
	}
	if taints := node.Spec.Taints; len(taints) > 0 {
		return fmt.Errorf("the node has the taint %s", taints[0].Key)
	}
	for _, c := range node.Status.Conditions {
		switch {
		case c.Type != "Ready":
			continue
		case c.Status != "True":
			return fmt.Errorf("the node is not ready: %s", c.Message)
		case c.LastHeartbeatTime.Before(after.Truncate(time.Second)):
			return fmt.Errorf("the node has not reported since %s", c.LastHeartbeatTime)
		}
		return nil
	}
	return errors.New("the node has not reported yet")
}
