package xdsenvoy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"istio-pod-network-controller/test/e2e/xdsenvoy/discovery"
	"istio-pod-network-controller/test/e2e/xdsenvoy/listen"
	"istio-pod-network-controller/test/e2e/xdsenvoy/notice"
	"istio-pod-network-controller/test/e2e/xdsenvoy/route"
	"istio-pod-network-controller/test/e2e/xdsenvoy/stats"
	"istio-pod-network-controller/test/e2e/xdsenvoy/trust"
	"istio-pod-network-controller/test/e2e/xdsenvoy/upstream"
)

// server is the proxy with all its parts.
type server struct {
	Options
	log       *slog.Logger
	bootstrap *bootstrapv3.Bootstrap
	stats     *stats.Stats
	secrets   *trust.Secrets
	clusters  *upstream.Clusters
	routes    *route.Tables
	listeners *listen.Listeners
	watch     chan string // names of secrets
	quit      context.CancelFunc
	failed    atomic.Bool // its health check
	live      atomic.Bool
	began     time.Time
}

// States of a server, of Envoy's administration.
const (
	stateLive         = 0
	stateDraining     = 1
	stateInitializing = 3
)

// Run is the proxy, until ctx ends or somebody has it quit.
func Run(ctx context.Context, o Options, log *slog.Logger) error {
	b, err := readBootstrap(o.ConfigPath)
	if err != nil {
		return err
	}
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	s := newServer(o, b, log, quit)
	if err := s.addStatic(); err != nil {
		return err
	}
	if err := s.serveAdmin(ctx); err != nil {
		return err
	}
	log.Info("starting", "node", b.GetNode().GetId(), "drainTime", o.DrainTime.String())
	stopped, err := s.discover(ctx)
	if err != nil {
		return err
	}
	defer stopped()
	if err := s.awaitConfiguration(ctx); err != nil {
		return nil // it is to end before it has begun
	}
	if err := s.listeners.Start(ctx); err != nil {
		return err
	}
	s.live.Store(true)
	s.stats.Gauge("listener_manager.workers_started").Store(1)
	log.Info("live", "after", time.Since(s.began).String())
	<-ctx.Done()
	return nil
}

func newServer(o Options, b *bootstrapv3.Bootstrap, log *slog.Logger, quit context.CancelFunc) *server {
	const secretsAtOnce = 64
	s := &server{Options: o, log: log, bootstrap: b, stats: stats.New(), watch: make(chan string, secretsAtOnce), quit: quit, began: time.Now()}
	board := &notice.Board{Log: log}
	s.secrets = trust.NewSecrets(func(name string) { s.watch <- name })
	s.clusters = upstream.NewClusters(s.secrets, board)
	s.routes = route.NewTables(board)
	s.listeners = listen.New(listen.Config{
		Clusters: s.clusters, Routes: s.routes, Secrets: s.secrets, Stats: s.stats, Board: board, Log: log, DrainTime: o.DrainTime,
	})
	s.stats.Gauge("server.state").Store(stateInitializing)
	s.stats.Gauge("listener_manager.workers_started")
	return s
}

func (s *server) addStatic() error {
	var errs []error
	for _, c := range s.bootstrap.GetStaticResources().GetClusters() {
		errs = append(errs, s.clusters.AddStatic(c))
	}
	for _, l := range s.bootstrap.GetStaticResources().GetListeners() {
		errs = append(errs, s.listeners.AddStatic(l))
	}
	return errors.Join(errs...)
}

// discover opens the streams to the agent. The function that it returns closes the connections.
func (s *server) discover(ctx context.Context) (stopped func(), err error) {
	cluster, incremental, err := adsOf(s.bootstrap)
	if err != nil {
		return nil, err
	}
	ads, err := s.dial(cluster)
	if err != nil {
		return nil, err
	}
	sds, err := s.dial("sds-grpc")
	if err != nil {
		return nil, errors.Join(err, ads.Close())
	}
	node := s.bootstrap.GetNode()
	client := &discovery.Client{
		Receiver: s, Log: s.log, Open: discovery.ADS(ads, node, incremental),
		Types:   []string{discovery.Clusters, discovery.Endpoints, discovery.Listeners, discovery.Routes},
		OnState: func(connected bool) { s.setConnected(connected) },
	}
	go client.Run(ctx)
	go s.watchSecrets(ctx, sds, node)
	return func() { _, _ = ads.Close(), sds.Close() }, nil
}

func (s *server) setConnected(connected bool) {
	value := int64(0)
	if connected {
		value = 1
	}
	s.stats.Gauge("control_plane.connected_state").Store(value)
}

func (s *server) dial(cluster string) (*grpc.ClientConn, error) {
	path, err := agentSocket(s.bootstrap, cluster)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(unixTarget(path), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// watchSecrets opens a stream for every secret, as Envoy does.
func (s *server) watchSecrets(ctx context.Context, conn *grpc.ClientConn, node *corev3.Node) {
	for {
		select {
		case name := <-s.watch:
			client := &discovery.Client{Receiver: secret{s.secrets, name}, Log: s.log, Open: discovery.SDS(conn, node), Types: []string{discovery.Secrets}}
			go client.Run(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// secret is the receiver of one secret.
type secret struct {
	*trust.Secrets
	name string
}

// Wanted is the secret's name.
func (s secret) Wanted(string) []string { return []string{s.name} }

// Apply gives a change to the part that it is for, and counts it.
func (s *server) Apply(change discovery.Change) error {
	var err error
	name := ""
	switch change.Type {
	case discovery.Clusters:
		name, err = "cluster_manager.cds", s.clusters.Apply(change)
	case discovery.Endpoints:
		err = s.clusters.Apply(change)
	case discovery.Listeners:
		name, err = "listener_manager.lds", s.listeners.Apply(change)
	case discovery.Routes:
		err = s.routes.Apply(change)
	default:
		return fmt.Errorf("resources of type %s are not understood", change.Type)
	}
	if name != "" {
		result := ".update_success"
		if err != nil {
			result = ".update_rejected"
		}
		s.stats.Counter(name + result).Add(1)
	}
	return err
}

// Wanted lists resources that clusters and listeners refer to.
func (s *server) Wanted(typeURL string) []string {
	switch typeURL {
	case discovery.Endpoints:
		return s.clusters.Wanted()
	case discovery.Routes:
		return s.listeners.RouteNames()
	}
	return nil
}

// Between two looks whether the configuration is complete, and how often it is said what is missing.
const (
	lookEvery = 50 * time.Millisecond
	sayEvery  = 10 * time.Second
)

// awaitConfiguration waits until all has come that was asked for: before, Envoy accepts no connection either.
func (s *server) awaitConfiguration(ctx context.Context) error {
	looks := time.NewTicker(lookEvery)
	defer looks.Stop()
	said := time.Now()
	for {
		missing := s.missing()
		if len(missing) == 0 {
			return nil
		}
		if time.Since(said) > sayEvery {
			said = time.Now()
			s.log.Warn("waiting for configuration", "missing", strings.Join(missing, ", "))
		}
		select {
		case <-looks.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *server) missing() []string {
	missing := append(s.clusters.Missing(), s.listeners.Missing()...)
	for _, name := range s.routes.Missing(s.listeners.RouteNames()) {
		missing = append(missing, "routes "+name)
	}
	for _, name := range s.secrets.Missing() {
		missing = append(missing, "secret "+name)
	}
	return missing
}

// state is the server's state by Envoy's numbers.
func (s *server) state() int64 {
	switch {
	case s.failed.Load():
		return stateDraining
	case s.live.Load():
		return stateLive
	}
	return stateInitializing
}

// configuration lists what is in force, by kind.
func (s *server) configuration() map[string][]proto.Message {
	all := map[string][]proto.Message{"bootstrap": {s.bootstrap}}
	s.clusters.Each(func(m proto.Message) { all["clusters"] = append(all["clusters"], m) })
	s.listeners.Each(func(m proto.Message) { all["listeners"] = append(all["listeners"], m) })
	return all
}
