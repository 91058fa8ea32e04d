package node

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/rollout"
)

// refusing is a cluster and a node on which no pod can have its proxy. It counts the looks at pods.
type refusing struct {
	sidecars.Runtime
	sidecars.Cluster
	looks int
}

func (*refusing) List(context.Context, string) ([]sidecar.Container, error) { return nil, nil }

func (*refusing) TidyLogs([]sidecar.Container) error { return nil }

func (r *refusing) Choice(context.Context, podnet.Sandbox) (sidecars.Choice, error) {
	r.looks++
	return sidecars.Choice{Name: "edge", Refusal: "there is none"}, nil
}

func (*refusing) Report(podnet.Sandbox, sidecars.Status) {}

func (*refusing) Forget(string) {}

func (*refusing) Retract(string) {}

// Each pod is checked every few seconds. That alone has no proxy looked at that is followed already; an event has.
func TestFollow_checkOfAPod_hasNoProxyLookedAt(t *testing.T) {
	homes := home.Homes{Root: t.TempDir()}
	reports, notes := newSidecarReports(nil, nil, "node-1"), newRoutesIn(t, t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		r := &refusing{}
		p := &Proxies{cluster: sidecarCluster{profiles: newProfiles(nil, "n1"), routes: notes}, reports: reports, manager: sidecars.New(sidecars.Config{
			Runtime: r, Cluster: r, Reporter: r, Homes: homes, Good: &rollout.Good{}, Rollout: &rollout.Queue{},
		})}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = p.manager.Start(ctx) }()
		cart := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "u1", ID: "s1"}
		moved := cart
		moved.NetNS = "/netns/1"
		for _, c := range []struct {
			what    string
			sandbox podnet.Sandbox
			by      controllers.Hook
			profile string
			looks   int
		}{
			{"a pod that has chosen none", cart, controllers.Watch, "", 0},
			{"a check finds a pod first", cart, controllers.Verify, "edge", 1},
			{"a check again", cart, controllers.Verify, "edge", 1},
			{"a check knows the namespace's path now", moved, controllers.Verify, "edge", 2},
			{"an event", moved, controllers.Watch, "edge", 3},
			{"the pod has chosen none any more", moved, controllers.Watch, "", 4},
		} {
			p.Follow(c.sandbox, c.by, c.profile)
			<-time.After(time.Second)
			synctest.Wait()
			if r.looks != c.looks {
				t.Errorf("%s: %d looks, want %d", c.what, r.looks, c.looks)
			}
		}
		cancel()
		<-ended
	})
}
