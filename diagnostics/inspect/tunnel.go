package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"istio-pod-network-controller/internal/printable"
)

// Tunnel dials by way of the API server: pods/proxy with an upgrade. The API server makes an HTTPS request to the agent, does not check its
// certificate, and then passes bytes in both directions without a look at them. It takes the right to get pods/proxy.
func Tunnel(ctx context.Context, config *rest.Config, namespace, pod string, port int) (net.Conn, error) {
	config = rest.CopyConfig(config)
	config.NextProtos = []string{"http/1.1"} // HTTP/2 has no upgrade
	config.Timeout = 0                       // it would end the tunnel
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	at := base.JoinPath("api/v1/namespaces", namespace, "pods", fmt.Sprintf("https:%s:%d", pod, port), "proxy", TunnelPath)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", UpgradeProtocol)
	response, err := client.Do(request)
	if err != nil {
		return nil, plain(err)
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		defer response.Body.Close() //nolint:errcheck // only read
		return nil, statusOf(response)
	}
	body, ok := response.Body.(io.ReadWriteCloser)
	if !ok {
		return nil, fmt.Errorf("the upgraded connection to the API server cannot be written to (%T)", response.Body)
	}
	return &upgraded{ReadWriteCloser: body}, nil
}

// statusOf returns the error that the API server, or a proxy before it, has answered with.
func statusOf(response *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err != nil {
		return fmt.Errorf("read the API server's answer: %w", err)
	}
	var status metav1.Status
	if json.Unmarshal(text, &status) == nil && status.Kind == "Status" {
		return &apierrors.StatusError{ErrStatus: status}
	}
	return fmt.Errorf("the API server answered with status %d: %s", response.StatusCode, strings.TrimSpace(printable.Line(string(text))))
}

// upgraded is an upgraded connection. Deadlines are the caller's context's.
type upgraded struct {
	io.ReadWriteCloser
}

func (*upgraded) LocalAddr() net.Addr              { return &net.UnixAddr{Net: "tunnel"} }
func (*upgraded) RemoteAddr() net.Addr             { return &net.UnixAddr{Net: "tunnel"} }
func (*upgraded) SetDeadline(time.Time) error      { return nil }
func (*upgraded) SetReadDeadline(time.Time) error  { return nil }
func (*upgraded) SetWriteDeadline(time.Time) error { return nil }

// Token returns the bearer token that requests of a kubeconfig carry, wherever it comes from: the file, a token's file, or a plugin.
func Token(config *rest.Config) (string, error) {
	if who := config.Impersonate.UserName; who != "" {
		return "", fmt.Errorf("the kubeconfig acts as %q, which the agent cannot check: leave that out, or use --via exec", who)
	}
	seen := &headerReader{}
	wrapped, err := rest.HTTPWrappersForConfig(config, seen)
	if err != nil {
		return "", fmt.Errorf("read the kubeconfig's credentials: %w", err)
	}
	request, err := http.NewRequest(http.MethodGet, "https://nowhere.invalid/", http.NoBody)
	if err != nil {
		return "", fmt.Errorf("read the kubeconfig's credentials: %w", err)
	}
	response, err := wrapped.RoundTrip(request)
	if err != nil {
		return "", fmt.Errorf("read the kubeconfig's credentials: %w", err)
	}
	_ = response.Body.Close() // it is empty
	token, ok := strings.CutPrefix(seen.authorization, "Bearer ")
	if !ok || token == "" {
		return "", errors.New("the kubeconfig has no bearer token, only a client certificate or a password, which the agent cannot check: " +
			"give --agent-token \"$(kubectl create token SERVICEACCOUNT --audience " + Audience + ")\" for an account that may get the pod, or --via exec")
	}
	return token, nil
}

// headerReader answers every request itself, and remembers its authorization.
type headerReader struct{ authorization string }

// RoundTrip sends nothing.
func (h *headerReader) RoundTrip(r *http.Request) (*http.Response, error) {
	h.authorization = r.Header.Get("Authorization")
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r, Header: http.Header{}}, nil
}
