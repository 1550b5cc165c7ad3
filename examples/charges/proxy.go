package main

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
)

// proxy is the one address before the instances. It takes them in turns. A request whose instance does not answer gets
// 502: the client sends it again, with the same key.
type proxy struct {
	httputil.ReverseProxy

	mu        sync.Mutex
	instances []string // host:port
	next      int
}

func newProxy(instances ...string) *proxy {
	p := &proxy{instances: instances}
	p.Transport = &http.Transport{MaxIdleConnsPerHost: 100}
	p.Rewrite = func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: p.pick()}) }
	p.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "no instance has answered; retry with the same key", http.StatusBadGateway)
	}
	return p
}

func (p *proxy) pick() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = (p.next + 1) % len(p.instances)
	return p.instances[p.next]
}

// replace puts a new instance in the place of an old one.
func (p *proxy) replace(was, is string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.instances {
		if p.instances[i] == was {
			p.instances[i] = is
		}
	}
}
