module duetime/peers/go

go 1.25
