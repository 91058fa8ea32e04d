package sidecars

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/rollout"
)

// The runtime, the log and the ManagedProxy have no byte of a secret, whatever happens to it.
func TestSecrets_errorsAndLogs_containNone(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, _ func() (*Manager, func())) {
		withSecrets(n)
		n.vault.lifetime = 10 * time.Minute
		n.profile.Spec.Secrets[0].UpgradeOnRotation = true
		var said strings.Builder
		note := func(what string, of any) { n.change(func() { fmt.Fprintf(&said, "%s %+v\n", what, of) }) }
		logger := funcr.New(func(prefix, args string) { note(prefix, args) }, funcr.Options{Verbosity: 10})
		ctx, cancel := context.WithCancel(log.IntoContext(t.Context(), logger))
		m := New(Config{Runtime: n, Images: n, Cluster: n, Asker: n, Reporter: n, Routes: n, Secrets: n, Homes: home.Homes{Root: t.TempDir()}, Good: &rollout.Good{Dir: t.TempDir()}, Rollout: &rollout.Queue{}})
		done := make(chan struct{})
		go func() { defer close(done); _ = m.Start(ctx) }()
		m.Follow(sandboxOf("u1"))
		for i, failure := range []error{nil, errors.New("the API server is away"), nil} {
			n.change(func() { n.vault.secret["tls.key"], n.vault.fails = fmt.Append(nil, "key-", i), failure })
			n.after(15 * time.Minute)
			note("ManagedProxy", n.said["u1"])
			for _, c := range n.containers {
				note("request", c.spec)
			}
		}
		cancel()
		<-done
		for _, secret := range []string{"key-", "crt-", "token-1", "token-2"} {
			if strings.Contains(said.String(), secret) {
				t.Errorf("%q is said:\n%s", secret, said.String())
			}
		}
		for _, want := range []string{"secret of a proxy renewed", "request", "is away"} {
			if !strings.Contains(said.String(), want) {
				t.Errorf("%q is not said:\n%s", want, said.String())
			}
		}
	})
}
