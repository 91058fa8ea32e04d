package listen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
)

// byteProxy passes a connection's bytes on.
type byteProxy struct {
	clusters []string
	weights  []uint64
	total    uint64
	logged   bool
}

func (l *Listeners) newBytes(of *listener, f *listenerv3.Filter) (*byteProxy, error) {
	var m tcpproxyv3.TcpProxy
	if err := f.GetTypedConfig().UnmarshalTo(&m); err != nil {
		return nil, err
	}
	l.Board.Fields(of.name, &m, "stat_prefix", "cluster", "weighted_clusters", "idle_timeout", "access_log", "access_log_options", "max_connect_attempts")
	p := &byteProxy{logged: len(m.GetAccessLog()) > 0}
	switch c := m.GetClusterSpecifier().(type) {
	case *tcpproxyv3.TcpProxy_Cluster:
		p.clusters, p.weights, p.total = []string{c.Cluster}, []uint64{1}, 1
	case *tcpproxyv3.TcpProxy_WeightedClusters:
		for _, w := range c.WeightedClusters.GetClusters() {
			p.clusters, p.weights = append(p.clusters, w.GetName()), append(p.weights, uint64(w.GetWeight()))
			p.total += uint64(w.GetWeight())
		}
	}
	if p.total == 0 {
		return nil, fmt.Errorf("cluster %v is not understood", m.GetClusterSpecifier())
	}
	return p, nil
}

// draw chooses a cluster by weight.
func (p *byteProxy) draw() string {
	n := rand.Uint64N(p.total) //nolint:gosec // no secret
	for i, weight := range p.weights {
		if n < weight {
			return p.clusters[i]
		}
		n -= weight
	}
	return ""
}

// serve connects and copies until both directions have ended.
func (p *byteProxy) serve(ctx context.Context, c *conn) {
	name := p.draw()
	up, address, err := p.connect(ctx, c, name)
	if err != nil {
		c.end(fmt.Sprintf("cluster %s: %v", name, err))
		return
	}
	if p.logged {
		c.listeners.Log.Info("connection", "source", c.source.String(), "target", c.target.String(), "cluster", name, "endpoint", address)
	}
	defer c.Close()  //nolint:errcheck // it is over
	defer up.Close() //nolint:errcheck // it is over
	done := make(chan bool, 2)
	go pass(up, c, done)
	go pass(c, up, done)
	for range 2 {
		if half := <-done; !half {
			return
		}
	}
}

// connectLimit bounds all attempts.
const connectLimit = 30 * time.Second

func (p *byteProxy) connect(ctx context.Context, c *conn, name string) (net.Conn, string, error) {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	cluster, err := c.listeners.Clusters.Find(ctx, name)
	if err != nil {
		return nil, "", err
	}
	endpoint, err := cluster.Pick(c.target)
	if err != nil {
		return nil, "", err
	}
	up, err := cluster.Dial(ctx, endpoint)
	return up, endpoint.Address, err
}

// pass copies one direction and ends it. It reports whether the other direction may go on.
func pass(to, from net.Conn, done chan<- bool) {
	_, err := io.Copy(to, from)
	done <- errors.Join(err, closeWrite(to)) == nil
}
