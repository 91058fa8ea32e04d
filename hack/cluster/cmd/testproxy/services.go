package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// serviceNames are the names of a cluster's Services: NAME.NAMESPACE.svc.cluster.local.
type serviceNames struct {
	addresses atomic.Pointer[map[string][]netip.Addr]
}

// namesEvery is how long a new Service has no name at most.
const namesEvery = time.Second

func (s *serviceNames) resolve(name string) ([]netip.Addr, bool) {
	addresses, exists := (*s.addresses.Load())[name]
	return addresses, exists
}

// followServices lists Services again and again. A list that fails leaves the names as they are, but for the first one.
func followServices(ctx context.Context, list func(context.Context) (map[string][]netip.Addr, error)) (*serviceNames, error) {
	first, err := list(ctx)
	if err != nil {
		return nil, err
	}
	s := &serviceNames{}
	s.addresses.Store(&first)
	go func() {
		tick := time.NewTicker(namesEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if next, err := list(ctx); err == nil {
				s.addresses.Store(&next)
			}
		}
	}()
	return s, nil
}

// inClusterServices lists Services as the pod's ServiceAccount.
func inClusterServices(ctx context.Context) (map[string][]netip.Addr, error) {
	const account = "/var/run/secrets/kubernetes.io/serviceaccount/"
	token, errToken := os.ReadFile(account + "token") // a new one each hour
	authority, errCA := os.ReadFile(account + "ca.crt")
	if err := errors.Join(errToken, errCA); err != nil {
		return nil, fmt.Errorf("no pod with a ServiceAccount: %w", err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	server := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	return listServices(ctx, transport, "https://"+server, string(token))
}

// listServices returns the addresses of all Services that have some, by name.
func listServices(ctx context.Context, transport http.RoundTripper, server, token string) (map[string][]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, queryLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/api/v1/services", http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(token))
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("list Services: %s", response.Status)
	}
	var all struct {
		Items []struct {
			Metadata struct{ Name, Namespace string }
			Spec     struct{ ClusterIPs []string }
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&all); err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	names := map[string][]netip.Addr{}
	for _, service := range all.Items {
		for _, ip := range service.Spec.ClusterIPs {
			if address, err := netip.ParseAddr(ip); err == nil { // a headless Service has "None"
				name := service.Metadata.Name + "." + service.Metadata.Namespace + ".svc.cluster.local"
				names[name] = append(names[name], address)
			}
		}
	}
	return names, nil
}
