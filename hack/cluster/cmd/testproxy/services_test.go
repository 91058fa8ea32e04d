package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestServicesHaveTheirNames(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/services" || r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprint(w, `{"items":[
			{"metadata":{"name":"reviews","namespace":"shop"},"spec":{"clusterIPs":["10.96.0.7","fd00::7"]}},
			{"metadata":{"name":"headless","namespace":"shop"},"spec":{"clusterIPs":["None"]}}]}`)
	}))
	defer server.Close()
	list := func(ctx context.Context) (map[string][]netip.Addr, error) {
		return listServices(ctx, http.DefaultTransport, server.URL, "secret\n")
	}
	names, err := followServices(t.Context(), list)
	if err != nil {
		t.Fatal(err)
	}
	client := asking("udp", startResolver(t, names.resolve))
	got, err := client.LookupHost(t.Context(), "Reviews.shop.svc.cluster.local.")
	if want := []string{"10.96.0.7", "fd00::7"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for _, name := range []string{"headless.shop.svc.cluster.local.", "reviews.shop.svc.", "reviews."} {
		if got, err := client.LookupHost(t.Context(), name); err == nil {
			t.Errorf("%s is at %v", name, got)
		}
	}
	if _, err := listServices(t.Context(), http.DefaultTransport, server.URL, "wrong"); err == nil {
		t.Error("no error though the API server refuses")
	}
}

// Names follow the Services, and stay while the API server does not answer.
func TestNamesFollowTheServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type answer struct {
			names map[string][]netip.Addr
			err   error
		}
		answers := make(chan answer, 1)
		list := func(context.Context) (map[string][]netip.Addr, error) {
			now := <-answers
			return now.names, now.err
		}
		answers <- answer{names: map[string][]netip.Addr{"a": nil}}
		names, err := followServices(t.Context(), list)
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			answer
			want string
		}{
			{answer{names: map[string][]netip.Addr{"b": nil}}, "b"},
			{answer{err: errors.New("away")}, "b"},
			{answer{names: map[string][]netip.Addr{"c": nil}}, "c"},
		} {
			answers <- step.answer
			<-time.After(namesEvery + time.Millisecond)
			synctest.Wait()
			if _, exists := names.resolve(step.want); !exists {
				t.Errorf("%s has no name", step.want)
			}
		}
		if _, exists := names.resolve("b"); exists {
			t.Error("a Service that is gone has a name")
		}
	})
}
