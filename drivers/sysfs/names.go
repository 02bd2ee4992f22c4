package sysfs

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/jaypipes/pcidb"
)

// Names knows what vendors and products are called, from the pci.ids file of this machine (package pci.ids on Debian,
// hwdata elsewhere). Without such a file, or for an id it does not list, the id is the name. Nothing is ever fetched.
//
// It keeps the names asked for and not the database, which takes some tens of MB in memory.
type Names struct {
	path string
	log  *slog.Logger

	mu       sync.Mutex
	vendors  map[string]string // by id; empty where the database has none
	products map[string]string // by vendor and product id
}

// NewNames reads the pci.ids file at path or, where that is empty, the one that pcidb finds in the usual places.
func NewNames(path string, log *slog.Logger) *Names {
	return &Names{path: path, log: log, vendors: map[string]string{}, products: map[string]string{}}
}

// Fill sets the names of the functions. It never fails.
func (n *Names) Fill(ctx context.Context, functions []Function) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.lookUpNew(functions); err != nil {
		n.log.DebugContext(ctx, "PCI ids stand in for names", "error", err)
	}
	for i := range functions {
		f := &functions[i]
		f.VendorName, f.ProductName = n.vendors[f.Vendor], n.products[f.Vendor+f.Product]
		if f.VendorName == "" {
			f.VendorName = f.Vendor
		}
		if f.ProductName == "" {
			f.ProductName = f.Product
		}
	}
}

// learn asks the database for what it has not been asked before.
func (n *Names) lookUpNew(functions []Function) error {
	known := true
	for _, f := range functions {
		_, vendor := n.vendors[f.Vendor]
		_, product := n.products[f.Vendor+f.Product]
		known = known && vendor && product
	}
	if known {
		return nil
	}
	db, err := n.load()
	if err != nil {
		return err
	}
	for _, f := range functions {
		n.vendors[f.Vendor], n.products[f.Vendor+f.Product] = "", ""
		if vendor := db.Vendors[f.Vendor]; vendor != nil {
			n.vendors[f.Vendor] = vendor.Name
		}
		if product := db.Products[f.Vendor+f.Product]; product != nil {
			n.products[f.Vendor+f.Product] = product.Name
		}
	}
	return nil
}

// load reads the database. pcidb indexes into lines without looking at their length, so a damaged file makes it panic.
func (n *Names) load() (db *pcidb.DB, err error) {
	defer func() {
		if damage := recover(); damage != nil {
			db, err = nil, fmt.Errorf("the pci.ids file is damaged: %v", damage)
		}
	}()
	never := false
	options := &pcidb.WithOption{EnableNetworkFetch: &never}
	if n.path != "" {
		options.Path = &n.path
	}
	db, err = pcidb.New(options)
	if err != nil {
		return nil, fmt.Errorf("reading pci.ids: %w", err)
	}
	return db, nil
}
